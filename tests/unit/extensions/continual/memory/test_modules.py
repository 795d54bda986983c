"""Memories: entries, modules, snapshots."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoqec.errors import AutoqecError, ContractError, UsageError
from autoqec.extensions.continual.memory.base import (
    CheatsheetEntry,
    Entry,
    ExperienceEntry,
    MemoryModuleConfig,
    ReflectionEntry,
    parse_entry,
)
from autoqec.extensions.continual.memory.modules import (
    MODULES,
    CheatsheetConfig,
    CheatsheetMemory,
    ExperienceDBConfig,
    ExperienceDBMemory,
    HistoryList,
    HistoryListConfig,
    HybridMemory,
    RetrievalService,
    build_memory,
    load_memory,
    memory_factory,
    parse_curation,
)


def experience(obs: str, action: str = "a") -> ExperienceEntry:
    return ExperienceEntry(obs=obs, action=action, feedback={"correct": True, "target": "t", "message": ""})


def note(text: str) -> Entry:
    return Entry(type="Observation", content=text)


def test_history_list_drops_the_oldest_beyond_its_length():
    memory = HistoryList(HistoryListConfig())
    for number in range(101):
        memory.update(note(str(number)))
    assert [entry.content for entry in memory.recall()] == [str(number) for number in range(1, 101)]


def test_history_list_without_a_length_is_unbounded():
    memory = HistoryList(HistoryListConfig(max_length=None))
    for number in range(1000):
        memory.update(note(str(number)))
    assert len(memory.recall()) == 1000


@pytest.mark.parametrize(
    "entry",
    [
        experience("o\nwith lines \u2028 and \x85 others"),
        ReflectionEntry(content="do x"),
        CheatsheetEntry(content="# sheet"),
        *(Entry(type=kind, content="c") for kind in ("Observation", "Action", "Feedback", "Reflection", "Summary")),
        Entry.model_validate({"_type": "from_the_future", "weights": [1, 2], "content": "x"}),
    ],
    ids=lambda entry: entry.type,
)
def test_entries_survive_a_json_lines_round_trip(entry, tmp_path):
    again = parse_entry(json.loads(json.dumps(entry.dump())))
    assert again == entry and type(again) is type(entry)
    memory = build_memory({"_type": "hybrid"})
    memory.update(entry)
    memory.save(tmp_path / "memory.jsonl")
    assert list(load_memory(tmp_path / "memory.jsonl").entries()) == [entry]


def test_entry_without_a_type_is_refused():
    with pytest.raises(ContractError, match="_type"):
        parse_entry({"content": "x"})


def test_type_is_read_under_both_names():
    assert isinstance(build_memory({"type": "hybrid"}), HybridMemory)
    assert isinstance(build_memory({"_type": "hybrid"}), HybridMemory)
    with pytest.raises(UsageError, match=r"nope.*history_list, cheatsheet"):
        build_memory({"_type": "nope"})
    with pytest.raises(ContractError, match="`_type` is"):
        build_memory({"_type": "hybrid", "type": "cheatsheet"})
    with pytest.raises(UsageError, match="max_lenght"):
        build_memory({"_type": "history_list", "max_lenght": 3})


def test_factory_builds_every_kind_and_refuses_others():
    assert memory_factory is build_memory
    assert set(MODULES) == {"history_list", "cheatsheet", "experience_db", "hybrid"}
    for kind, module in MODULES.items():
        built = build_memory({"_type": kind})
        assert type(built) is module and type(built.config) is module.config_type and built.entries() == []
        assert built.config.dump()["_type"] == kind
    with pytest.raises(UsageError, match="unknown memory type"):
        build_memory(MemoryModuleConfig(type="other"))
    with pytest.raises(UsageError, match="no `_type`"):
        build_memory({})


def test_cheatsheet_keeps_versions():
    memory = CheatsheetMemory(CheatsheetConfig(versions=2))
    assert memory.get_cheatsheet() == ""
    for text in ("one", "two", "three"):
        memory.set_cheatsheet(text)
    assert memory.get_cheatsheet() == "three"
    assert memory.versions() == ["two", "three"]
    with pytest.raises(ContractError, match="experience"):
        memory.update(experience("x"))


def test_collapsed_cheatsheet_is_refused_if_the_guard_is_set():
    memory = CheatsheetMemory(CheatsheetConfig(min_keep=0.5))
    memory.set_cheatsheet("x" * 100)
    with pytest.raises(ContractError, match="min_keep"):
        memory.set_cheatsheet("x" * 49)
    memory.set_cheatsheet("y" * 50)
    assert memory.versions() == ["x" * 100, "y" * 50]


def test_delta_edits_change_single_lines():
    edits = [{"op": "add", "text": "c"}, {"op": "replace", "old": "a", "new": "A"}, {"op": "remove", "text": "b"}]
    assert parse_curation(f"sure: <edits>{json.dumps(edits)}</edits>", "a\nb") == "A\nc"
    assert parse_curation("<cheatsheet>\nnew\n</cheatsheet>", "a\nb") == "new"


@pytest.mark.parametrize(
    "response",
    [
        "no tags at all",
        "<cheatsheet></cheatsheet>",
        "<cheatsheet>a</cheatsheet><cheatsheet>b</cheatsheet>",
        "<edits>[]</edits>",
        "<edits>[{]</edits>",
        '<edits>[{"op": "drop", "text": "a"}]</edits>',
        '<edits>[{"op": "remove", "text": "not there"}]</edits>',
        '<edits>[{"op": "remove", "text": "twice"}]</edits>',
    ],
)
def test_malformed_curation_is_an_error(response):
    with pytest.raises(AutoqecError):
        parse_curation(response, "a\ntwice\ntwice")


OBSERVATIONS = [
    "surface code distance five",
    "repetition code",
    "colour code on a torus",
    "surface code distance three",
]


def test_nearest_experience_comes_first():
    memory = ExperienceDBMemory()
    for text in OBSERVATIONS:
        memory.update(experience(text))
    found = [entry.obs for entry in memory.search("torus colour", 2)]
    assert found[0] == OBSERVATIONS[2]
    assert [entry.obs for entry in memory.search("surface distance three", 2)] == [OBSERVATIONS[3], OBSERVATIONS[0]]


def test_search_with_ties_large_k_and_empty_query():
    memory = ExperienceDBMemory()
    assert memory.search("anything", 3) == []
    for action in "xyz":
        memory.update(experience("same words", action))
    assert [entry.action for entry in memory.search("same words", 10)] == ["x", "y", "z"]
    assert memory.search("same words", 0) == []
    assert [entry.action for entry in memory.search("unrelated", 2)] == ["x", "y"]


def test_bounded_database_drops_the_oldest_entry_and_its_index():
    memory = ExperienceDBMemory(ExperienceDBConfig(max_length=2))
    for text in OBSERVATIONS:
        memory.update(experience(text))
    assert [entry.obs for entry in memory.search("repetition", 5)] == OBSERVATIONS[2:]
    with pytest.raises(ContractError, match="Observation"):
        memory.update(note("x"))


def test_hybrid_memory_composes_and_is_restored_from_its_file(tmp_path):
    memory = HybridMemory()
    memory.set_cheatsheet("v1")
    memory.set_cheatsheet("v2")
    memory.update(ReflectionEntry(content="r"))
    for text in OBSERVATIONS:
        memory.update(experience(text))
    assert memory.get_cheatsheet() == "v2"
    assert memory.retrieve_examples("torus", 1)[0].obs == OBSERVATIONS[2]
    memory.save(tmp_path / "m.jsonl")
    again = load_memory(tmp_path / "m.jsonl")
    assert isinstance(again, HybridMemory)
    assert again.cheatsheet.versions() == ["v1", "v2"]
    assert again.notes.recall() == [ReflectionEntry(content="r")]
    assert again.snapshot() == memory.snapshot()
    assert again.retrieve_examples("torus", 4) == memory.retrieve_examples("torus", 4)


@given(st.lists(st.text(alphabet="ab cd", max_size=12), max_size=8), st.text(alphabet="ab cd", max_size=8))
def test_retrieval_service_equals_the_database_search(texts, query):
    service = RetrievalService()
    service.build_index(texts)
    memory = ExperienceDBMemory()
    for number, text in enumerate(texts):
        memory.update(experience(text, str(number)))
    assert [int(entry.action) for entry in memory.search(query, 5)] == service.query_top_k(query, 5)


@pytest.mark.parametrize("kind", list(MODULES))
def test_snapshot_restores_config_and_entries(kind, tmp_path):
    config = {"_type": kind, **({"max_length": 3} if kind in ("history_list", "experience_db") else {})}
    memory = build_memory(config)
    for number in range(5):
        text = f"entry {number}"
        memory.update(CheatsheetEntry(content=text) if kind == "cheatsheet" else experience(text))
    memory.save(tmp_path / "m.jsonl")
    again = load_memory(tmp_path / "m.jsonl")
    assert again.config == memory.config
    assert again.snapshot() == memory.snapshot() == (tmp_path / "m.jsonl").read_text()


def test_torn_or_edited_snapshot_is_refused(tmp_path):
    memory = HistoryList()
    for number in range(3):
        memory.update(note(str(number)))
    whole = memory.snapshot()
    path = tmp_path / "m.jsonl"
    for cut in range(len(whole) - 1):  # the last byte is a newline without content
        path.write_text(whole[:cut])
        with pytest.raises(ContractError):
            load_memory(path)
    path.write_text(whole.replace('"2"', '"7"'))
    with pytest.raises(ContractError, match="edited"):
        load_memory(path)
    with pytest.raises(ContractError, match="cannot be read"):
        load_memory(tmp_path / "none.jsonl")


def test_frozen_memory_can_be_read_and_not_written():
    memory = HistoryList()
    memory.update(note("before"))
    with memory.frozen():
        assert len(memory.recall()) == 1
        with pytest.raises(ContractError, match="frozen"):
            memory.update(note("within"))
    memory.update(note("after"))
    assert [entry.content for entry in memory.recall()] == ["before", "after"]
