"""The ideator `policy` of `autoqec run`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autoqec.orchestrator.plugin_protocols import IdeatorPlugin

if TYPE_CHECKING:
    from autoqec.contracts.events import OnEvent
    from autoqec.orchestrator.run import Roles, Run


class PolicyIdeator(IdeatorPlugin):
    """Proposes designs that a policy, trained on the history of the run, draws; it has no options."""

    def build(self, run: Run, on_event: OnEvent) -> Roles:
        """Return the roles."""
        from autoqec.extensions.continual.environments.policy_ideator import propose
        from autoqec.orchestrator.run import Roles

        return Roles(propose)


plugin = PolicyIdeator()
