"""How a child process starts: flags, import path, executable, the bootstrap's failures, and modules without a guard."""

from __future__ import annotations

import ast
import importlib
import os
import subprocess
import sys
import textwrap
import zipfile
from collections.abc import Iterator
from pathlib import Path

import msgpack
import pytest
import setproctitle
from actor_zoo import Counter

import ringcast.actors as rt

pytestmark = pytest.mark.usefixtures("leak_oracle")

ZOO = """
    import os, sys
    import ringcast.actors as rt

    class Facts(rt.Actor):
        @rt.call
        async def facts(self):
            flags = sys.flags
            return repr({
                "isolated": flags.isolated, "environment": flags.ignore_environment, "site": flags.no_site,
                "user_site": flags.no_user_site, "optimize": flags.optimize, "bytes_warning": flags.bytes_warning,
                "write": sys.dont_write_bytecode, "dev": flags.dev_mode, "utf8": flags.utf8_mode,
                "x": dict(sys._xoptions), "w": list(sys.warnoptions), "path": sys.path,
                "struct": sys.modules["struct"].__file__, "executable": sys.executable,
            })
"""
APP = """
    import asyncio, sys
    import ringcast.actors as rt
    from zoo import Facts

    async def main():
        async with rt.System() as system:
            actor = await system.spawn(rt.spec(Facts), name="facts", where=rt.process())
            print(await actor.facts())
            import struct
            print(struct.__file__)

    asyncio.run(main())
"""


def run(command: list[str], folder: Path, **env: str | None) -> tuple[int, str, str]:
    """A program in that working directory; exit code, stdout, stderr."""
    environment = {**os.environ, **{name: value for name, value in env.items() if value is not None}}
    for name in [name for name, value in env.items() if value is None]:
        environment.pop(name, None)
    ended = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, env=environment)
    return ended.returncode, ended.stdout, ended.stderr


def write(folder: Path, **files: str) -> None:
    folder.mkdir(exist_ok=True)
    for name, text in files.items():
        (folder / f"{name}.py").write_text(textwrap.dedent(text))


def vendored(folder: Path) -> str:
    """A program's first line where nothing but the standard library is installed: it has a copy of the runtime."""
    for name in ("ringcast", "ringcast.channels", "ringcast.actors"):
        copy = folder.joinpath("vendor", *name.split("."))
        copy.mkdir(parents=True)
        for found in importlib.import_module(name).__path__:
            for file in Path(found).glob("*.*"):
                if file.is_file() and not (copy / file.name).exists():
                    (copy / file.name).symlink_to(file)
    return f"import sys; sys.path += {[str(folder / 'vendor'), *installed_packages()]!r}\n"


def installed_packages() -> list[str]:
    """Where msgpack and its like are."""
    return sorted({str(Path(module.__file__).parent.parent) for module in (msgpack, setproctitle)})


@pytest.fixture(autouse=True)
def default_executable() -> Iterator[None]:
    yield
    rt.set_executable(None)


def test_a_child_has_the_flags_of_its_parent(tmp_path: Path) -> None:
    """A9: -O, -B, -b, -s, -X and -W reach the child."""
    write(tmp_path, zoo=ZOO, app=APP)
    flags = ["-O", "-B", "-b", "-s", "-X", "utf8", "-X", "faulthandler", "-W", "ignore::ImportWarning"]
    code, out, err = run([sys.executable, *flags, "app.py"], tmp_path)
    assert code == 0, err
    facts = ast.literal_eval(out.splitlines()[0])
    assert (facts["optimize"], facts["write"], facts["bytes_warning"], facts["user_site"]) == (1, True, 1, 1)
    assert (facts["utf8"], facts["x"]) == (1, {"utf8": True, "faulthandler": True})
    assert "ignore::ImportWarning" in facts["w"]


def test_an_isolated_program_has_isolated_children(tmp_path: Path) -> None:
    """A9: with -I, neither PYTHONPATH nor the working directory is looked at."""
    write(tmp_path, zoo=ZOO, app=f"import sys\nsys.path.append({str(tmp_path)!r})\n" + textwrap.dedent(APP))
    write(tmp_path / "evil", struct="raise SystemExit('the wrong struct')")
    command = [sys.executable, "-I", str(tmp_path / "app.py")]
    code, out, err = run(command, tmp_path / "evil", PYTHONPATH=str(tmp_path / "evil"))
    assert code == 0, err
    facts = ast.literal_eval(out.splitlines()[0])
    assert (facts["isolated"], facts["environment"], facts["user_site"]) == (1, 1, 1)


@pytest.mark.parametrize("shadow", ["struct", "dataclasses", "ringcast", "sitecustomize"])
def test_a_file_in_the_working_directory_shadows_nothing(tmp_path: Path, shadow: str) -> None:
    """A9, C34: the child looks into the working directory only if its parent does."""
    write(tmp_path, zoo=ZOO, app=APP)
    write(tmp_path / "here", **{shadow: "open('executed', 'w')"})
    for flags in (["-P"], []):
        code, out, err = run(
            [sys.executable, *flags, str(tmp_path / "app.py")], tmp_path / "here", PYTHONPATH=str(tmp_path)
        )
        assert code == 0, err
        facts, struct = out.splitlines()
        assert ast.literal_eval(facts)["struct"] == struct
        assert str(tmp_path / "here") not in ast.literal_eval(facts)["path"]
    assert not (tmp_path / "here" / "executed").exists()


def test_a_program_that_made_its_packages_importable_itself_has_children_that_can(tmp_path: Path) -> None:
    """C35: without site-packages, what the program puts on sys.path is all that there is."""
    write(tmp_path / "lib", zoo=ZOO)
    lines = f"sys.path.insert(0, {str(tmp_path / 'lib')!r})\n"
    write(tmp_path, app=vendored(tmp_path) + lines + textwrap.dedent(APP))
    code, out, err = run([sys.executable, "-I", "-S", "app.py"], tmp_path)
    assert code == 0, err
    assert ast.literal_eval(out.splitlines()[0])["site"] == 1


def test_a_zipped_program_has_children(tmp_path: Path) -> None:
    """C35: a zipapp whose __main__ extends sys.path."""
    with zipfile.ZipFile(tmp_path / "app.pyz", "w") as archive:
        archive.writestr("zoo.py", textwrap.dedent(ZOO))
        archive.writestr("__main__.py", vendored(tmp_path) + textwrap.dedent(APP))
    code, out, err = run([sys.executable, "-S", "app.pyz"], tmp_path)
    assert code == 0, err
    assert str(tmp_path / "app.pyz") in ast.literal_eval(out.splitlines()[0])["path"]


async def test_a_bootstrap_that_fails_says_so_in_start_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    """C35: the child's own last lines are in StartFailed."""
    async with rt.System() as system:
        await system.spawn(rt.spec(Counter, 0), where=rt.process())  # what the parent needs is imported
        monkeypatch.setattr(sys, "path", ["/nowhere"])
        with pytest.raises(rt.StartFailed, match="exited with code 1") as failure:
            await system.spawn(rt.spec(Counter, 0), where=rt.process())
    assert "ModuleNotFoundError: No module named" in str(failure.value)


@pytest.mark.parametrize("way", ["variable", "setting"])
async def test_another_executable_runs_children(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    """C36: rt.set_executable and RINGCAST_EXECUTABLE."""
    python = tmp_path / "my app"
    python.write_text(f'#!/bin/sh\ntouch "{tmp_path}/started"\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    if way == "variable":
        monkeypatch.setenv("RINGCAST_EXECUTABLE", str(python))
    else:
        monkeypatch.setattr(sys, "frozen", True, raising=False)
        rt.set_executable(python)
    async with rt.System() as system:
        counter = await system.spawn(rt.spec(Counter, 0), where=rt.process())
        assert await counter.add(1) == 1
    assert (tmp_path / "started").exists()


@pytest.mark.parametrize("executable", ["", None, "/bin/true", "/bin/sleep", "/nowhere/python", "/etc/passwd"])
async def test_a_wrong_executable_is_one_clear_error(monkeypatch: pytest.MonkeyPatch, executable: str | None) -> None:
    """C36: the error names the setting and the variable."""
    monkeypatch.setattr(sys, "executable", executable)
    async with rt.System() as system:
        with pytest.raises(rt.StartFailed, match="rt.set_executable.*RINGCAST_EXECUTABLE") as failure:
            await system.spawn(rt.spec(Counter, 0), where=rt.process())
    assert repr(executable) in str(failure.value)
    assert "\n" not in str(failure.value)


async def test_a_frozen_app_is_not_started_a_second_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """C36: sys.frozen."""
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    async with rt.System() as system:
        with pytest.raises(rt.StartFailed, match="frozen app.*rt.set_executable.*RINGCAST_EXECUTABLE"):
            await system.spawn(rt.spec(Counter, 0), where=rt.process())


async def test_a_program_named_python_that_is_none_is_told_as_such(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """C36: it ended before our bootstrap ran."""
    fake = tmp_path / "python3"
    fake.write_text("#!/bin/sh\necho I am another app\nexit 3\n")
    fake.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(fake))
    async with rt.System() as system:
        with pytest.raises(rt.StartFailed, match="exited with code 3.*set_executable") as failure:
            await system.spawn(rt.spec(Counter, 0), where=rt.process())
    assert failure.value.cause.stderr_tail == "I am another app"


def test_set_executable_refuses_what_is_no_python() -> None:
    """C36: at once, with the remedy."""
    for path in ("/bin/true", "/nowhere", "/etc/passwd"):
        with pytest.raises(ValueError, match=f"{path}.*set_executable"):
            rt.set_executable(path)


def test_a_module_without_a_guard_starts_no_storm_of_processes(tmp_path: Path) -> None:
    """A13: a module that the child imports for its actor class, with asyncio.run(main()) at its end."""
    unguarded = """
        import asyncio, os
        import ringcast.actors as rt

        print("imported", flush=True)

        class Greeter(rt.Actor):
            @rt.call
            async def greet(self):
                return "hello"

        async def main():
            async with rt.System() as system:
                await system.spawn(rt.spec(Greeter), where=rt.process())

        asyncio.run(main())
    """
    write(tmp_path, unguarded=unguarded)
    code, out, err = run([sys.executable, "-c", "import unguarded"], tmp_path)
    assert code == 1
    assert "a child process cannot start a system while it imports actor class unguarded:Greeter" in err
    assert 'if __name__ == "__main__":' in err
    assert out.count("imported") + err.count("imported\n") == 2  # the program and its one child
