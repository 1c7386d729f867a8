"""The cache changes only its own files: entries of every kind are surrounded by similar files of other programs."""

import json
import os
import shutil
import sys
from pathlib import Path

import pytest

from host import cli, stage_times
from sim.verilated import cache, cache_bound, cache_content, cache_folder
from sim.verilated.cache import cached, complete
from sim.verilated.cache_entries import MANIFEST, remove
from sim.verilated.processes import ToolError

DIGEST = "0123456789abcdef01234567"


@pytest.fixture
def top(tmp_path, monkeypatch):
    """Path of a cache that does not exist yet, with a small size limit."""
    monkeypatch.setenv(cache_folder.VARIABLE, str(tmp_path / "cache"))
    monkeypatch.setenv(cache_folder.LIMIT, "1k")  # every build exceeds this limit
    monkeypatch.setattr(cache_bound, "_added", None)
    return tmp_path / "cache"


def build(fresh):
    (fresh / "product").write_bytes(bytes(2000))


def make(kind, name=f"unit-{DIGEST}"):
    """Create a cache entry that no process uses."""
    path = cache_folder.folder(kind) / name
    cache_folder.make(path.parent)
    path.mkdir(mode=0o755)
    build(path)
    cache._seal(path)
    return path


def clear(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["gradring", "cache", "clear"])
    with pytest.raises(SystemExit) as caught:
        cli.main()
    return caught.value.code


#: What a user can do with the cache, by name.
ACTS = {
    "build": lambda patch: [cached(cache_folder.folder(kind) / f"built-{DIGEST}", build) for kind in
                            cache_folder.KINDS],
    "prune": lambda patch: cache_content.prune(most=-1),
    "clear": clear,
    "list": lambda patch: cache_content.entries(),
    "stages": lambda patch: stage_times.note("compile", 3.0),
}


def tree(*folders):
    """Map all paths in the given folders to the contents of files and the targets of links."""
    return {str(path): (os.readlink(path) if path.is_symlink() else path.read_bytes() if path.is_file() else None)
            for folder in folders for path in sorted(folder.rglob("*"))}


def project(path):
    """Create a folder of another program, with names of files as in a cache."""
    path.mkdir(parents=True)
    (path / "source.v").write_text("module source; endmodule")
    (path / MANIFEST).write_text(json.dumps({"version": 1}))
    inner = path / f"inner-{DIGEST}"
    inner.mkdir()
    (inner / MANIFEST).write_text("{}")
    (path / "4711-01234567").write_text("a file like a note of a process")
    return path


#: Names of files that are neither cache entries nor files that belong to a cache entry.
NAMES = ["project", "project-0123456789abcdef", f"project-{DIGEST}0", f"project-{DIGEST.upper()}",
         f"project-g{DIGEST[1:]}", f"project{DIGEST}", DIGEST, ".project-12345678",
         ".project-0123456789abcdef-12345678", ".vscode-server12",
         f".project-{DIGEST}-1234567", f".project-{DIGEST}-1234567x", f".project-{DIGEST}", ".git"]
#: Names that belong to the cache, for entries and for what builds leave.
OWN = [f"linked-{DIGEST}", f"linked-{DIGEST}-62.5-1", f".linked-{DIGEST}-12345678", f".linked-{DIGEST}.lock"]


def plant(folder, foreign):
    """Put all kinds of foreign files in a folder for one kind of entry; ``foreign`` is a folder outside of the
    cache."""
    for name in NAMES:
        project(folder / name)
        (folder / f"{name}.txt").write_text("a user's file")
        if not name.startswith(f".project-{DIGEST}"):
            (folder / f".{name.strip('.')}.lock").write_text("another program's lock")
    for number, name in enumerate(OWN):
        (folder / name).symlink_to(foreign if number < 3 else foreign / "source.v")
        (folder / name.replace("linked", "broken")).symlink_to(foreign / "absent")
        (folder / name.replace("linked", "written")).write_text("a file") if number < 3 else None


@pytest.mark.parametrize("act", ["prune", "clear", "build"])
def test_decoys_stay(top, tmp_path, monkeypatch, act):
    """Files without a valid digest in their name are kept in all folders of the cache, and so are targets of
    links."""
    foreign = project(tmp_path / "foreign")
    entries = [make(kind) for kind in cache_folder.KINDS]
    for kind in cache_folder.KINDS:
        plant(cache_folder.folder(kind), foreign)
        remains = cache_folder.folder(kind) / f".unit-{DIGEST}-12345678"
        shutil.copytree(entries[0], remains)
    project(top / "photographs")
    before = tree(top, tmp_path / "foreign")
    ACTS[act](monkeypatch)
    after = tree(top, tmp_path / "foreign")
    gone = [Path(path).relative_to(top) for path in before.keys() - after.keys()]
    assert {path.parts[1] for path in gone} == {f"unit-{DIGEST}", f".unit-{DIGEST}-12345678"}
    assert {path.parts[0] for path in gone} == cache_folder.KINDS.keys()
    assert {path: after[path] for path in before.keys() & after.keys() if not path.endswith("/.lock")} == {
        path: value for path, value in before.items() if path in after and not path.endswith("/.lock")}


def test_links_for_folders_of_kinds(top, tmp_path, monkeypatch):
    """If a folder for entries or for records of users is replaced with a symbolic link, the link is not followed."""
    for kind in cache_folder.KINDS:
        make(kind)
        foreign = tmp_path / "foreign" / kind
        shutil.copytree(cache_folder.folder(kind), foreign)
        project(foreign / ".users")
        shutil.rmtree(cache_folder.folder(kind))
        cache_folder.folder(kind).symlink_to(foreign)
        with pytest.raises(ToolError, match=rf"^{top}/{kind} must be a folder, not a link, since nothing is removed "
                                            r"through a link: remove it, or set GRADRING_CACHE to another folder$"):
            cached(cache_folder.folder(kind) / f"unit-{DIGEST}", build)
        with pytest.raises(ValueError, match=r"^Folder must be an entry of the cache, not /.*"):
            remove(cache_folder.folder(kind) / f"unit-{DIGEST}")
    before = tree(tmp_path / "foreign")
    assert cache_content.entries() == []
    assert cache_content.prune(most=-1) == cache_content.Removed((), ())
    assert tree(tmp_path / "foreign") == before
    for kind in cache_folder.KINDS:
        cache_folder.folder(kind).unlink()
        path = make(kind)
        (path.parent / ".users").symlink_to(tmp_path / "foreign" / kind / ".users")
        with pytest.raises(ToolError, match=r" cannot be written: not a directory; "):
            cached(path.with_name(f"other-{DIGEST}"), build)
    assert len(cache_content.prune(most=-1).gone) == len(cache_folder.KINDS)
    assert tree(tmp_path / "foreign") == before


def test_links_for_locks(top, tmp_path):
    """Locks are neither created nor held if their path is a symbolic link."""
    path = make("verilog")
    (tmp_path / "file").write_text("a user's file")
    for name in (".lock", f".other-{DIGEST}.lock"):
        (path.parent / name).unlink(missing_ok=True)
        (path.parent / name).symlink_to(tmp_path / "absent")
        with pytest.raises(ToolError, match=r"too many levels of symbolic links"):
            cached(path.with_name(f"other-{DIGEST}"), build)
        (path.parent / name).unlink()
    assert not (tmp_path / "absent").exists()


def tags(top, tmp_path):
    """Yield actions that replace the file that marks a folder as a cache with another program's file or with other
    contents."""
    tag, text = top / cache_folder.TAG, cache_folder._TAG
    yield "none", lambda: None
    yield "another program's", lambda: tag.write_text(text.splitlines()[0] + "\n# Made by another program.\n")
    yield "no signature", lambda: tag.write_text("".join(text.splitlines(keepends=True)[1:]))
    yield "cut short", lambda: tag.write_text(text[:60])
    yield "folder", tag.mkdir
    yield "link", lambda: ((tmp_path / "tag").write_text(text), tag.symlink_to(tmp_path / "tag"))
    yield "fifo", lambda: os.mkfifo(tag)


@pytest.mark.parametrize("act", ACTS)
def test_a_folder_without_the_tag(top, tmp_path, monkeypatch, act, capsys):
    """Every use of the cache rejects a folder with foreign files in a one-line message, and changes nothing."""
    for kind in cache_folder.KINDS:
        make(kind)
    project(top / "photographs")
    (top / cache_folder.TAG).unlink()
    message = (f"Cache folder {top} must be empty or have the CACHEDIR.TAG of gradring, not other files: set "
               f"GRADRING_CACHE to another folder, or empty this one if it was a cache")
    for name, write in tags(top, tmp_path):
        write()
        before = {path: value for path, value in tree(top).items() if not path.endswith(cache_folder.TAG)}
        if act == "clear":
            assert (clear(monkeypatch), capsys.readouterr().err) == (1, f"error: {message}\n"), name
        elif act == "stages":
            ACTS[act](monkeypatch)
            assert stage_times.known("compile") is None
        else:
            with pytest.raises(ToolError) as caught:
                ACTS[act](monkeypatch)
            assert str(caught.value) == message, name
        assert {path: value for path, value in tree(top).items()
                if not path.endswith(cache_folder.TAG)} == before, name
        if (top / cache_folder.TAG).is_dir():
            (top / cache_folder.TAG).rmdir()
        else:
            (top / cache_folder.TAG).unlink(missing_ok=True)


def test_an_empty_folder_becomes_a_cache(top):
    """Folders become caches if they are empty, contain only a half-written tag, or are caches of older versions."""
    top.mkdir(mode=0o755)
    assert cache_content.prune(most=-1) == cache_content.Removed((), ())
    assert list(top.iterdir()) == []
    (top / ".CACHEDIR.TAG-01234567").write_text("Signa")
    path = cached(cache_folder.folder("verilog") / f"unit-{DIGEST}", build)
    assert complete(path)
    assert (top / "CACHEDIR.TAG").read_text() == (
        "Signature: 8a477f597d28d172789f06886806bc55\n"
        "# Everything here is found again by its digest and built again where it is gone. See gradring cache.\n"
        "# For information about cache directory tags see https://bford.info/cachedir/\n")


def test_a_link_to_a_cache(top, tmp_path, monkeypatch):
    """The cache may be a link to a folder, as on another disk; the tag is in the folder itself."""
    make("verilog")
    monkeypatch.setenv(cache_folder.VARIABLE, str(tmp_path / "link"))
    (tmp_path / "link").symlink_to(top)
    assert len(cache_content.prune(most=-1).gone) == 1


@pytest.mark.parametrize("mode", [0o775, 0o757, 0o1777])
def test_a_cache_that_other_users_may_write(top, monkeypatch, mode):
    """A cache, or a folder in it, to which other users can write is neither filled nor read."""
    paths = [make(kind) for kind in cache_folder.KINDS]
    for folder in (top, *(path.parent for path in paths)):
        folder.chmod(mode)
        for path in paths if folder == top else [item for item in paths if item.parent == folder]:
            with pytest.raises(ToolError) as caught:
                cached(path, build)
            assert str(caught.value) == (
                f"Cache folder {folder} must be writable for its owner only, not for other users, since its "
                f"libraries are run: use 'chmod -R go-w' on it if they are trusted, or set GRADRING_CACHE to another "
                f"folder")
        folder.chmod(0o755)
    assert all(cached(path, lambda fresh: pytest.fail("built again")) == path for path in paths)
    top.chmod(mode)
    assert clear(monkeypatch) == 1
    assert all(map(Path.exists, paths))


def test_an_empty_folder_that_other_users_may_write(top):
    top.mkdir()
    top.chmod(0o777)
    with pytest.raises(ToolError, match=r"must be writable for its owner only"):
        cached(cache_folder.folder("verilog") / f"unit-{DIGEST}", build)
    assert list(top.iterdir()) == []


def test_a_cache_of_another_user(top, monkeypatch):
    """A cache must be owned by the user or by the system's administrator."""
    path, real = make("verilog"), os.stat

    def stat(owner):
        def answer(path, **options):
            status = real(path, **options)
            return os.stat_result((*status[:4], owner, *status[5:])) if Path(path) == top else status

        return answer

    monkeypatch.setattr(os, "stat", stat(0))
    assert cached(path, lambda fresh: pytest.fail("built again")) == path
    monkeypatch.setattr(os, "stat", stat(os.geteuid() + 4321))
    with pytest.raises(ToolError) as caught:
        cached(path, build)
    assert str(caught.value) == (
        f"Cache folder {top} must be of this user, not of user {os.geteuid() + 4321}, since its libraries are run: "
        f"set GRADRING_CACHE to a folder of your own")


def test_a_mask_that_lets_a_group_write(top):
    """Other users cannot write to the cache, whatever the user's umask is."""
    mask = os.umask(0o002)
    try:
        path = cached(cache_folder.folder("verilog") / f"unit-{DIGEST}", build)
        assert cached(path, lambda fresh: pytest.fail("built again")) == path
    finally:
        os.umask(mask)
    for name in (top, path.parent, path, *path.iterdir(), path.parent / ".users"):
        assert name.stat().st_mode & 0o022 == 0, name


@pytest.mark.parametrize("name", [".", "product", MANIFEST])
def test_an_entry_that_other_users_may_write(top, name):
    path = make("verilog")
    assert complete(path)
    (path / name).chmod(0o777)
    assert not complete(path)
    assert (cached(path, build) / name).stat().st_mode & 0o022 == 0


@pytest.mark.parametrize("text", [
    "{}", "[]", "1", "null", '{"product": 1}', '{"product": [2000]}', '{"product": {"size": 1}}', '{"": [0, ""]}',
    '{"../secret": [6, "2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b"]}',
    '{"manifest.json": [1, ""]}', '{"a\\u0000b": [1, ""]}', '{"product": [true, ""]}', "[" * 100_000, "\xff",
])
def test_manifests_of_others(top, text):
    """An entry is not complete if its manifest was not written by a build."""
    path = make("verilog")
    (path.parent / "secret").write_text("secret")
    (path / MANIFEST).write_text(text, encoding="latin-1")
    assert not complete(path)
    assert complete(cached(path, build))


def test_files_that_are_links(top, tmp_path):
    path = make("verilog")
    shutil.copy(path / "product", tmp_path / "product")
    (path / "product").unlink()
    (path / "product").symlink_to(tmp_path / "product")
    assert not complete(path)
    with pytest.raises(ToolError, match=r"/link must be a file once it is built, not a link or a device$"):
        cached(path.with_name(f"other-{DIGEST}"), lambda fresh: (fresh / "link").symlink_to(tmp_path / "product"))
    with pytest.raises(ToolError, match=r" must have at least a file once it is built$"):
        cached(path.with_name(f"other-{DIGEST}"), lambda fresh: (fresh / "folder").mkdir())


def test_entries_are_built_in_the_cache_only(top, tmp_path):
    with pytest.raises(ValueError, match=r"^Entry of the cache must have a name with a digest of .*, not 'unit'$"):
        cached(cache_folder.folder("verilog") / "unit", build)
    for parent in (tmp_path, top, top / "photographs", top / "verilog" / "verilog"):
        with pytest.raises(ValueError, match=r"^Folder must be that of a kind in the cache .*/cache, not /.*"):
            cached(parent / f"unit-{DIGEST}", build)
    assert not top.exists()
