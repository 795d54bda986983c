"""Environment variables that clients of language models read, and the removal of their keys from what is written."""

from __future__ import annotations

import os
import re
from typing import Any

SECRET_ENV_VARS = (
    "ANTHROPIC_API_KEY",
    "ANTHROPIC_AUTH_TOKEN",
    "CLAUDE_CODE_OAUTH_TOKEN",
    "OPENAI_API_KEY",
    "CODEX_API_KEY",
    "GEMINI_API_KEY",
    "GOOGLE_API_KEY",
    "HF_TOKEN",
)
_PROXIES = ("HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY", "NO_PROXY")
NETWORK = (
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "NODE_EXTRA_CA_CERTS",
    *_PROXIES,
    *(name.lower() for name in _PROXIES),  # many machines set only these
)
ENDPOINTS = {
    "claude": ("ANTHROPIC_BASE_URL", "CLAUDE_CONFIG_DIR"),
    "codex": ("OPENAI_BASE_URL", "CODEX_HOME"),
}
# Read by the libraries of the providers.
ACCOUNTS = ("OPENAI_ORG_ID", "OPENAI_PROJECT_ID", "ANTHROPIC_CUSTOM_HEADERS")
CONNECTION = (*NETWORK, *ACCOUNTS, *(name for names in ENDPOINTS.values() for name in names))

REDACTED_TEXT = "[key removed]"

_SECRET_PATTERN = re.compile(r"(?<![A-Za-z0-9])(?:sk-[A-Za-z0-9_-]{16,}|AIza[A-Za-z0-9_-]{30,})")
_MIN_SECRET_LENGTH = 8  # a shorter value would black out ordinary words

_added: set[str] = set()


def add_secret(value: str) -> None:
    """Redact a key that a config reads from an environment variable of its own choice."""
    _added.add(value)


def secret_values() -> list[str]:
    """Return the values of the environment's key variables and the added ones, longest first."""
    values = {os.environ.get(name, "") for name in SECRET_ENV_VARS} | _added
    # Lines of `Name: value`; gateways put tokens there.
    values |= {line.partition(":")[2].strip() for line in os.environ.get("ANTHROPIC_CUSTOM_HEADERS", "").splitlines()}
    return sorted((value for value in values if len(value) >= _MIN_SECRET_LENGTH), key=len, reverse=True)


def encodable(text: str) -> str:
    """Return `text` with lone surrogates, which JSON may name but no file can hold, replaced by question marks."""
    return text.encode(errors="replace").decode()


def redact(text: str) -> str:
    """Return `text` without any key of the environment, without anything shaped like one, and `encodable`."""
    text = encodable(text)
    for key in secret_values():
        text = text.replace(key, REDACTED_TEXT)
    return _SECRET_PATTERN.sub(REDACTED_TEXT, text)


def redact_value(value: Any) -> Any:
    """Return a JSON value with every string redacted, keys of objects too."""
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, dict):
        return {redact(str(name)): redact_value(item) for name, item in value.items()}
    return [redact_value(item) for item in value] if isinstance(value, list | tuple) else value
