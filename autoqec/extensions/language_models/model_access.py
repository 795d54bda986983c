"""What the jobs of a detached run need to ask language models: variables of this process, and endpoints."""

from __future__ import annotations

import ipaddress
import os
import re
import socket
from collections.abc import Iterator
from urllib.parse import urlsplit

from autoqec.errors import UsageError
from autoqec.extensions.language_models.clients import environment
from autoqec.extensions.language_models.clients.config import ROLE_FIELDS
from autoqec.extensions.language_models.clients.environment import SECRET_ENV_VARS
from autoqec.extensions.language_models.plugin import ModelOptions

_ROLE_VARIABLE = re.compile(rf"AUTOQEC_[A-Z_]+_({'|'.join(ROLE_FIELDS).upper()})")
_KEY_VARIABLE = re.compile(r"AUTOQEC_[A-Z_]+_API_KEY_ENV")  # names the variable of a key
# Endpoint of a backend if the role has none of its own.
_ENDPOINT_VARIABLES = {"anthropic": "ANTHROPIC_BASE_URL", "claude": "ANTHROPIC_BASE_URL", "codex": "OPENAI_BASE_URL"}


def exported_variables(options: ModelOptions) -> Iterator[str]:
    """Yield the variables of the roles; keys, endpoints and proxies only if a model is asked, not a cassette."""
    if options.models:
        yield from (name for name in os.environ if _ROLE_VARIABLE.fullmatch(name))
    if options.models and not options.cassette:
        yield from (*SECRET_ENV_VARS, *environment.CONNECTION)
        yield from (value for name, value in os.environ.items() if _KEY_VARIABLE.fullmatch(name))


def require_reachable(options: ModelOptions) -> None:
    """Raise UsageError if a model is asked at an address that leads jobs on other machines to themselves."""
    if options.cassette:
        return
    for role, model in options.models.items():
        own = f"AUTOQEC_{role.upper()}_BASE_URL"
        variable = own if model.base_url else _ENDPOINT_VARIABLES.get(model.backend, own)
        url = model.base_url or (os.environ.get(variable, "") if variable != own else "")
        if _is_loopback(url):
            host = urlsplit(url).hostname
            message = f"{host} is an address of this machine only, and the job of a detached run is on another"
            hint = f"{variable}={_from_other_machines(url)} if the endpoint listens there (on a resume with --model), "
            hint += "or start with --no-detach"
            raise UsageError(message, location=f"endpoint of the {role}", hint=hint)


def _is_loopback(url: str) -> bool:
    try:
        host = urlsplit(url).hostname or ""
        return host == "localhost" or host.endswith(".localhost") or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _from_other_machines(url: str) -> str:
    """Return the URL with the name of this machine."""
    parts = urlsplit(url)
    try:
        port = "" if parts.port is None else f":{parts.port}"
    except ValueError as error:
        raise UsageError(str(error), location=f"address of {parts.hostname}", hint="http://HOST:PORT") from error
    return parts._replace(netloc=f"{socket.gethostname()}{port}").geturl()
