"""Settings come from the right place, and what is wrong is named."""

from __future__ import annotations

import msgspec
import pytest

from millpond.errors import InvalidQuery
from millpond.settings import SETTINGS, Settings


def resolve(options=None, conf=None, environ=None):
    return Settings.resolve(options or {}, (conf or {}).get, environ or {})


def test_defaults():
    assert resolve() == Settings()
    assert Settings().memory_bytes == 1024**3


def test_options_win_over_conf_over_environment_over_default():
    name, variable = "millpond.compaction.maxRuns", "MILLPOND_COMPACTION_MAX_RUNS"
    assert resolve(environ={variable: "3"}).max_runs == 3
    assert resolve(conf={f"spark.{name}": "4"}, environ={variable: "3"}).max_runs == 4
    assert resolve(conf={name: "5", f"spark.{name}": "4"}).max_runs == 5
    assert resolve({name: "6"}, {name: "5"}, {variable: "3"}).max_runs == 6


def test_options_know_no_case():
    assert resolve({"MillPond.Versions.KEEP": "7"}).keep_versions == 7


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1048576", 1 << 20),
        ("256m", 256 << 20),
        ("1g", 1 << 30),
        ("2048K", 2 << 20),
        ("3MB", 3 << 20),
        ("1t", 1 << 40),
    ],
)
def test_sizes_are_spelled_as_in_spark(text, size):
    assert resolve({"millpond.memory.bytes": text}).memory_bytes == size


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("millpond.memory.bytes", "lots"),
        ("millpond.memory.bytes", "1.5g"),
        ("millpond.memory.bytes", "-1g"),
        ("millpond.memory.bytes", "1k"),
        ("millpond.memory.bytes", ""),
        ("millpond.compaction.maxRuns", "1"),
        ("millpond.compaction.maxRuns", "8.0"),
        ("millpond.compaction.maxSpaceAmplification", "1"),
        ("millpond.compaction.maxSpaceAmplification", "nan"),
        ("millpond.compaction.maxSpaceAmplification", "inf"),
        ("millpond.versions.keep", "0"),
        ("millpond.emit.localRows", "-1"),
    ],
)
def test_bad_value_names_setting_value_and_what_is_allowed(name, text):
    with pytest.raises(InvalidQuery) as caught:
        resolve({name: text})
    message = str(caught.value)
    assert name in message
    assert repr(text) in message
    assert "must be" in message
    assert "at least" in message


def test_bad_value_says_where_it_stands():
    with pytest.raises(InvalidQuery, match="environment variable MILLPOND_MEMORY_BYTES is 'x'"):
        resolve(environ={"MILLPOND_MEMORY_BYTES": "x"})
    with pytest.raises(InvalidQuery, match=r"Spark configuration 'spark.millpond.memory.bytes' is 'x'"):
        resolve(conf={"spark.millpond.memory.bytes": "x"})


def test_unknown_setting_is_named_with_those_there_are():
    with pytest.raises(InvalidQuery, match=r"'millpond.memory.byte'.*millpond\.memory\.bytes"):
        resolve({"millpond.memory.byte": "1g"})


def test_other_options_are_left_alone():
    assert resolve({"checkpointLocation": "/x", "millponds": "x"}) == Settings()


def test_every_field_has_a_setting_and_each_reaches_its_field():
    assert {setting.field for setting in SETTINGS} == set(Settings.__struct_fields__)
    for setting in SETTINGS:
        text = str(setting.default * 2)
        changed = resolve({setting.name: text})
        assert changed == msgspec.structs.replace(Settings(), **{setting.field: setting.default * 2})
        assert resolve({setting.name: setting.default_text}) == Settings()
        assert setting.meaning


def test_settings_are_frozen_plain_data():
    with pytest.raises(AttributeError):
        Settings().max_runs = 3  # type: ignore[misc]
    assert msgspec.json.decode(msgspec.json.encode(Settings()), type=Settings) == Settings()
