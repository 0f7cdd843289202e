"""Wheels that pip accepts, and a folder of them that it takes for the package index."""

import zipfile
from pathlib import Path

import pytest


def make_wheel(folder: Path, name: str, version: str, files: dict[str, bytes]) -> Path:
    """A wheel that pip accepts, with these files in it."""
    spelled = name.replace("-", "_")
    info = f"{spelled}-{version}.dist-info"
    path = folder / f"{spelled}-{version}-py3-none-any.whl"
    meta = {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\nRequires-Dist: on-no-index\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/RECORD": "",
    }
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for member, content in (files | {key: text.encode() for key, text in meta.items()}).items():
            archive.writestr(member, content)
    return path


def use_wheels(base: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that the user's pip configuration points to, and a cache folder of its own."""
    folder = base / "wheels"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PELTON_CACHE", str(base / "cache"))
    return folder
