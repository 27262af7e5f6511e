"""Who may import whom, and what the README says of the code."""

import ast
import graphlib
import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

import jaxopt_suite

ROOT = Path(__file__).parents[1]
PACKAGE = Path(jaxopt_suite.__file__).parent
# Beyond core and problems, a field imports only the fields named here.
ALLOWED = {
    "core": set(),
    "problems": {"core", "stochastic.noise"},
    "testing": {"core"},
    "decentralized": {"stochastic"},
    "transport": {"minimax"},
    "collapse": {"geometry"},
}


def imports(path):
    """Dotted names that a file imports, relative to the package's root."""
    prefix = f"{PACKAGE.name}."
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        for name in names:
            yield name.removeprefix(prefix) if name.startswith(prefix) else name


def is_within(name, allowed):
    return name == allowed or name.startswith(f"{allowed}.")


def rooms():
    return sorted(p.name for p in PACKAGE.iterdir() if (p / "__init__.py").exists())


@pytest.mark.parametrize("room", rooms())
def test_a_field_imports_core_and_only_the_fields_it_may(room):
    allowed = ALLOWED.get(room, set())
    if room not in ("core", "problems", "testing"):
        allowed = allowed | {"core", "problems"}
    others = {*rooms(), "experiments", "tests"} - {room}
    for path in (PACKAGE / room).rglob("*.py"):
        for name in imports(path):
            reaches = any(is_within(name, other) for other in others)
            if reaches and not any(is_within(name, a) for a in allowed):
                pytest.fail(f"{path.relative_to(ROOT)} imports {name}")


def test_no_file_imports_itself_through_others():
    files = {
        ".".join(path.relative_to(PACKAGE).with_suffix("").parts): path
        for path in PACKAGE.rglob("*.py")
        if path.name != "__init__.py"
    }
    needs = {
        name: {f for n in imports(path) for f in files if is_within(n, f)}
        for name, path in files.items()
    }
    assert "stochastic.noise" in needs["problems.stochastic"]
    # Raises CycleError.
    graphlib.TopologicalSorter(needs).prepare()


def test_the_import_rule_can_fail(tmp_path):
    file = tmp_path / "bad.py"
    file.write_text("from jaxopt_suite.stochastic import storm\nimport experiments.x\n")
    assert list(imports(file)) == ["stochastic.storm", "experiments.x"]


def test_importing_the_package_loads_no_heavy_extra():
    code = (
        "import sys, jaxopt_suite, jaxopt_suite.core, jaxopt_suite.stochastic, "
        "jaxopt_suite.problems\n"
        "heavy = {'matplotlib', 'sklearn', 'orbax', 'rich', 'flax', 'chex', 'pytest'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def method_rows():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d+) \| (.+) \| (.+) \| (.+) \| (\w+) \|$", text, re.M)
    return [(int(number), *cells) for number, *cells in rows]


def test_the_table_of_methods_is_true():
    rows = method_rows()
    assert [row[0] for row in rows] == list(range(1, 20))
    for number, _, modules, experiment, status in rows:
        names = [f"jaxopt_suite.{name}" for name in re.findall(r"`(\w+)`", modules)]
        names.append("experiments." + experiment.strip("`"))
        # A field may stand while a second method of it is still to come.
        there = [importlib.util.find_spec(name) is not None for name in names]
        assert status in ("available", "planned"), f"row {number}"
        assert there[-1] == (status == "available"), f"row {number}: {names}"
        assert all(there) or status == "planned", f"row {number}: {names}"


def test_no_file_names_a_package_host_or_a_local_path():
    hosts = ["py" + "pi.org", "python" + "hosted", "registry." + "npmjs"]
    tracked = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    assert "uv.lock" not in tracked
    for name in tracked:
        path = ROOT / name
        if path.suffix in (".png", ".npz") or not path.exists():
            continue
        text = path.read_text(encoding="utf-8")
        found = [host for host in hosts if host in text]
        assert not found, f"{name} names {found}"
