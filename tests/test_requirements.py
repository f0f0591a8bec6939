"""The lists of dependencies that are written down three times agree, and the exact versions fit their ranges."""

import sys
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # comes with pytest there

ROOT = Path(__file__).parent.parent
CONDA_NAMES = {"pytorch": "torch"}


def ranges(lines):
    parsed = [Requirement(line) for line in lines]
    assert len({r.name for r in parsed}) == len(parsed), "a package is listed twice"
    return {canonicalize_name(r.name): str(r.specifier) for r in parsed}


def lines_of(name):
    text = (ROOT / name).read_text()
    return [line for line in (raw.split("#")[0].strip() for raw in text.splitlines()) if line]


def declared(*keys):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lists = {"dependencies": project["dependencies"], **project["optional-dependencies"]}
    return ranges([line for key in keys for line in lists[key]])


def test_requirements_are_those_of_the_package_and_the_notebooks():
    assert ranges(lines_of("requirements.txt")) == declared("dependencies", "notebooks")


def test_the_conda_environment_is_the_same_under_its_own_names():
    content = yaml.safe_load((ROOT / "environment.yml").read_text())
    conda = [line for line in content["dependencies"] if isinstance(line, str)]
    found = {CONDA_NAMES.get(name, name): wanted for name, wanted in ranges(conda).items()}
    assert found.pop("pip") == ""
    assert f'requires-python = "{found.pop("python")}"' in (ROOT / "pyproject.toml").read_text()
    assert found == ranges(lines_of("requirements.txt"))
    assert content["dependencies"][-1] == {"pip": ["-e ."]}


def test_torch_is_pinned():
    assert "torch==2.13.0" in lines_of("constraints.txt")


@pytest.mark.parametrize("python", ["3.10", "3.11", "3.12", "3.13"])
def test_one_exact_version_in_range_for_each_direct_dependency(python):
    pinned = {}
    for requirement in map(Requirement, lines_of("constraints.txt")):
        here = {"python_version": python, "python_full_version": f"{python}.7"}
        if requirement.marker is None or requirement.marker.evaluate(here):
            name = canonicalize_name(requirement.name)
            assert name not in pinned, f"{name} is pinned twice for Python {python}"
            (exact,) = requirement.specifier
            assert exact.operator == "=="
            pinned[name] = exact.version
    for name, wanted in declared("dependencies", "notebooks", "test").items():
        assert Requirement(f"{name}{wanted}").specifier.contains(pinned[name]), name
