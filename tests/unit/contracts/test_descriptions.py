"""Every field of a contract has a description."""

from __future__ import annotations

import importlib
import pkgutil

import pytest

import autoqec.contracts
from autoqec.contracts.base import Contract
from docs.generate import SHARED_FIELDS

MODULES = [module.name for module in pkgutil.iter_modules(autoqec.contracts.__path__)]


def models(module: str) -> list[type[Contract]]:
    loaded = importlib.import_module(f"autoqec.contracts.{module}")
    values = [
        value for value in vars(loaded).values() if isinstance(value, type) and value.__module__ == loaded.__name__
    ]
    return [value for value in values if issubclass(value, Contract)]


def description(model: type[Contract], field: str) -> str:
    """Return the field's description, or that of the field that it narrows."""
    owners = [*model.__mro__, *([SHARED_FIELDS[model.__name__]] if model.__name__ in SHARED_FIELDS else [])]
    fields = [
        owner.model_fields[field] for owner in owners if issubclass(owner, Contract) and field in owner.model_fields
    ]
    return next((found.description.strip() for found in fields if found.description), "")


@pytest.mark.parametrize("module", MODULES)
def test_every_field_has_a_description(module: str) -> None:
    missing = [f"{model.__name__}.{name}" for model in models(module) for name in model.model_fields
               if not description(model, name)]  # fmt: skip
    assert not missing


def test_contracts_are_found() -> None:
    assert sum(len(models(module)) for module in MODULES) > 60
