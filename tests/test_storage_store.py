"""Storage keeps what it promises, in memory and in a local directory."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from millpond.errors import Conflict, InvalidQuery, Unavailable
from millpond.storage.local import LocalStorage
from millpond.storage.store import Missing, Storage, open_storage
from millpond.testing.storage import CONFORMANCE_CHECKS, MemoryStorage


@pytest.fixture(params=["local", "memory"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    return LocalStorage(tmp_path / "not" / "there" / "yet") if request.param == "local" else MemoryStorage()


@pytest.mark.parametrize("check", CONFORMANCE_CHECKS, ids=lambda check: check.__name__)
def test_conformance(check, storage):
    check(storage)


def test_missing_message_names_object_and_directory(tmp_path):
    with pytest.raises(Missing, match=rf"packs/7 is missing in {tmp_path}.*restore"):
        LocalStorage(tmp_path).get("packs/7")


def test_put_leaves_no_temporary_files(tmp_path):
    storage = LocalStorage(tmp_path)
    storage.put("a/b", b"x")
    with pytest.raises(Conflict):
        storage.put("a/b", b"y")
    assert list(storage.work_directory().iterdir()) == []


def test_put_file_from_another_file_system_is_copied(tmp_path, monkeypatch):
    storage = LocalStorage(tmp_path / "state")
    source = tmp_path / "pack"
    source.write_bytes(b"content")
    link = os.link

    def link_only_inside(src, dst):
        if Path(src) == source:
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
        link(src, dst)

    monkeypatch.setattr(os, "link", link_only_inside)
    storage.put_file("packs/1", source)
    assert storage.get("packs/1") == b"content"
    assert not source.exists()


@pytest.mark.parametrize(
    ("code", "kind", "advice"),
    [
        (errno.ENOSPC, Unavailable, "Free some space"),
        (errno.EACCES, InvalidQuery, "permission"),
        (errno.EROFS, InvalidQuery, "permission"),
        (errno.EIO, Unavailable, "Check the disk"),
    ],
)
def test_system_errors_say_where_and_what_to_do(tmp_path, monkeypatch, code, kind, advice):
    storage = LocalStorage(tmp_path)
    storage.put("a/before", b"")

    def fail(_descriptor):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(kind) as caught:
        storage.put("a/b", b"x")
    assert str(tmp_path) in str(caught.value)
    assert advice in str(caught.value)
    assert storage.list("a/") == ["a/before"]


def test_real_full_disk_is_unavailable(tmp_path, monkeypatch):
    # /dev/full takes no byte: the write itself fails, as on a full disk.
    storage = LocalStorage(tmp_path)
    original = Path.open

    def open_full(self, mode="r", *args, **kwargs):
        return original(Path("/dev/full"), "wb") if mode == "xb" else original(self, mode, *args, **kwargs)

    monkeypatch.setattr(Path, "open", open_full)
    with pytest.raises(Unavailable, match=r"No space left.*Free some space"):
        storage.put("a/b", b"x" * 100_000)
    assert storage.list("") == []


def test_file_system_without_hard_links_is_named(tmp_path, monkeypatch):
    def no_links(_source, _target):
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", no_links)
    with pytest.raises(InvalidQuery, match=r"hard links.*stateLocation"):
        LocalStorage(tmp_path).put("a/b", b"x")


def test_state_directory_that_is_a_file(tmp_path):
    file = tmp_path / "state"
    file.write_text("not a directory")
    with pytest.raises(InvalidQuery, match="stateLocation"):
        LocalStorage(file).put("a/b", b"x")
    with pytest.raises(InvalidQuery, match="stateLocation"):
        LocalStorage(file).list("")


WRITER = """
import sys
from millpond.storage.local import LocalStorage
storage = LocalStorage(sys.argv[1])
(storage.work_directory() / "half").write_bytes(b"half a pack")
print("written", flush=True)
sys.stdin.read()
"""


def test_files_of_a_killed_writer_are_leftovers_and_those_of_a_living_one_are_not(tmp_path):
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"written\n"
        storage = LocalStorage(tmp_path)
        own = storage.work_directory() / "own"
        own.write_bytes(b"")
        assert storage.remove_leftovers() == ()
        writer.send_signal(signal.SIGKILL)
        writer.wait()
    removed = storage.remove_leftovers()
    assert [Path(name).name for name in removed] == ["half"]
    assert own.exists()
    assert sorted(entry.name for entry in (tmp_path / "work").iterdir()) == sorted(
        [own.parent.name, f"{own.parent.name}.lock"]
    )


def test_forked_child_gets_a_work_directory_of_its_own(tmp_path):
    storage = LocalStorage(tmp_path)
    parents = storage.work_directory()
    child = os.fork()
    if child == 0:
        os._exit(0 if storage.work_directory() != parents else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert parents.exists()


def test_open_storage_takes_paths_and_file_uris(tmp_path):
    spaced = tmp_path / "a state"
    for location in (str(spaced), f"file:{spaced}", f"file://{str(spaced).replace(' ', '%20')}"):
        assert open_storage(location).location == str(spaced)
    assert open_storage("relative/x:y").location == str(Path.cwd() / "relative/x:y")


@pytest.mark.parametrize("location", ["s3://bucket/x", "hdfs://host/x", "file://elsewhere/x", "dbfs:/x", " "])
def test_open_storage_refuses_other_places(location):
    with pytest.raises(
        InvalidQuery, match=r"(?s)local director.*stateLocation|stateLocation.*local director"
    ):
        open_storage(location)
