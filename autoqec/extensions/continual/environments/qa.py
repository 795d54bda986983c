"""QAEnv: one question with one answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from autoqec.extensions.continual.environments.base import Environment, episode_done_error


class QAEnv(Environment):
    """Compares answers exactly. Subclasses override `evaluate`, or the normalisation of question, target and action."""

    env_type: ClassVar[str] = "qa"

    def __init__(
        self,
        question: str,
        answer: Any,
        metadata: Mapping[str, Any] | None = None,
        *,
        instruction_template: str | None = None,
        env_id: str | None = None,
    ) -> None:
        self.question, self.answer = question, answer
        self.metadata = dict(metadata or {})
        self.instruction_template = instruction_template
        self.env_id = env_id or str(self.metadata.get("id", self.env_type))
        self._done = False

    def reset(self) -> str:
        """Start an episode and return the question."""
        self._done = False
        question = self.normalize_input(self.question)
        # Not str.format: template and question may contain other braces.
        return self.instruction_template.replace("{question}", question) if self.instruction_template else question

    def step(self, action: str) -> tuple[None, dict[str, Any], bool, dict[str, Any]]:
        """Answer the question."""
        if self._done:
            raise episode_done_error(self)
        feedback = self.evaluate(action)
        self._done = True
        return None, feedback, True, self.info()

    def evaluate(self, action: str) -> dict[str, Any]:
        """Compare an answer with the target."""
        target = self.normalize_target(self.answer)
        return {"correct": self.normalize_action(action) == target, "target": target, "message": "exact-match"}

    def info(self) -> dict[str, Any]:
        """Return the metadata, with its id also as `question_id`."""
        known = {"question_id": self.metadata["id"]} if "id" in self.metadata else {}
        return {**known, **self.metadata}

    def normalize_input(self, question: str) -> str:
        """Return the question as it is shown."""
        return question

    def normalize_target(self, answer: Any) -> str:
        """Return the target in the form in which it is compared."""
        return str(answer)

    def normalize_action(self, action: str) -> str:
        """Return an answer in the form in which it is compared."""
        return action
