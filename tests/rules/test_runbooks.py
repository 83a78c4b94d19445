"""What a woken person finds: a runbook for each alert, wherever fusewire is installed, that begins with tonight."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from fusewire_webhook.cli import build_parser
from fusewire_webhook.settings.rulecheck import check_rules

ROOT = Path(__file__).parents[2]
RUNBOOKS = sorted(path for path in (ROOT / "docs" / "runbooks").glob("*.md") if path.name != "README.md")


@pytest.mark.parametrize("path", RUNBOOKS, ids=lambda path: path.stem)
def test_a_runbook_begins_with_what_to_do_tonight(path: Path) -> None:
    """Its first section says in a few lines who acts, whether it can wait, and one command that there is."""
    titles = re.split(r"^## ", path.read_text(), flags=re.MULTILINE)
    assert re.fullmatch(rf"# {path.stem}\n\n\*[a-z, ]+\*\n\n", titles[0])
    heading, _, tonight = titles[1].partition("\n")
    assert heading == "Tonight"
    words, command = re.fullmatch(r"(.+)\n\n```sh\n(.+)\n```\n\n", tonight, re.DOTALL).groups()  # type: ignore[union-attr]
    assert len(words.splitlines()) <= 3
    assert re.search(r"\b[Ii]t (can|cannot) wait\b", words)
    assert "\n" not in command
    if command.startswith("fusewire "):
        build_parser().parse_args(shlex.split(command)[1:])


@pytest.mark.parametrize("image", ["webhook", "trainer"])
def test_an_image_copies_what_its_wheel_needs(image: str, tmp_path: Path) -> None:
    """Of the checkout, what the Dockerfile copies and .dockerignore lets through is enough to build the wheel."""
    passed = re.findall(r"^!(.+)$", (ROOT / ".dockerignore").read_text(), re.MULTILINE)
    copies = re.findall(
        r"^COPY (?!--from)(.+) \S+$", (ROOT / "compose" / image / "Dockerfile").read_text(), re.MULTILINE
    )
    for name in {name for line in copies for name in line.split()}:
        assert any(Path(name).is_relative_to(allowed) for allowed in passed)
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, tmp_path / name)
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel"]
    subprocess.run(build, cwd=tmp_path, check=True, capture_output=True)
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    assert any(name.endswith("/KLSpike.md") for name in zipfile.ZipFile(wheel).namelist())


def test_the_pack_of_a_wheel_is_fit(tmp_path: Path) -> None:
    """The rules that pip installs find their runbooks beside them: `fusewire check` has nothing to say of them."""
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(tmp_path / "site")
    rules = sorted((tmp_path / "site" / "fusewire_webhook" / "_rules").glob("*.rules.yaml"))
    assert rules
    assert check_rules(rules) == []
