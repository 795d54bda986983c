"""Environment variables that clients of language models read, besides keys and the settings of the roles."""

from __future__ import annotations

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
