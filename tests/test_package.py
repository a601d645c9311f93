"""An installation gives a wheel that imports, an entry point, no TensorFlow by accident, and a README that is true."""

import importlib.util
import os
import re
import subprocess
import sys
import types
import zipfile
from importlib.metadata import entry_points
from pathlib import Path

import numpy as np
import pytest

import tfdp_layers
from helpers.variants import slow_but
from tfdp_layers.zoo import datasets

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
# An editable installation maps the folders in wherever Python runs; without it we see what other installations see.
WITHOUT_EDITABLE = (
    "import sys; sys.meta_path = [f for f in sys.meta_path if 'editable' not in getattr(f, '__module__', '').lower()];"
)


def python(code: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-c", WITHOUT_EDITABLE + code],
        cwd=cwd,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
    )


def copy_sources(copy: Path) -> Path:
    for name in ("setup.cfg", "pyproject.toml", "README.md", "LICENSE"):
        (copy / name).write_bytes((ROOT / name).read_bytes())
    for folder in ("tfdp_layers", "accounting", "callbacks"):
        for file in (ROOT / folder).rglob("*"):
            if file.suffix == ".py" or file.name == "py.typed":
                target = copy / file.relative_to(ROOT)
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(file.read_bytes())
    return copy


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """The built wheel. Built from a copy, so that no build folder is left in the checkout."""
    copy = copy_sources(tmp_path_factory.mktemp("source"))
    out = tmp_path_factory.mktemp("wheel")
    # The installed setuptools builds it: tests need no network.
    options = ["--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", str(out)]
    subprocess.run([sys.executable, "-m", "pip", "wheel", *options, str(copy)], check=True, capture_output=True)
    return next(out.glob("*.whl"))


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory) -> Path:
    """A folder with what the wheel installs."""
    folder = tmp_path_factory.mktemp("site")
    zipfile.ZipFile(wheel).extractall(folder)  # A pure wheel installs by unpacking.
    return folder


def test_the_wheel_holds_one_package_with_every_source_file(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names if ".dist-info" not in name} == {"tfdp_layers"}
    expected = {
        f"tfdp_layers/{path.relative_to(ROOT / 'tfdp_layers')}" for path in (ROOT / "tfdp_layers").rglob("*.py")
    }
    for folder in ("accounting", "callbacks"):
        expected |= {f"tfdp_layers/{path.relative_to(ROOT)}" for path in (ROOT / folder).rglob("*.py")}
    assert expected <= set(names)
    assert "tfdp_layers/py.typed" in names
    assert any(name.endswith("/LICENSE") for name in names)


def test_the_installed_wheel_imports_from_another_folder(installed, tmp_path):
    code = (
        "import tfdp_layers as t, tfdp_layers.accounting, tfdp_layers.commands.train;print(t.__version__, t.__file__,"
        " t.accounting.__file__, t.commands.train.__file__)"
    )
    done = python(code, tmp_path, PYTHONPATH=str(installed))
    assert done.returncode == 0, done.stderr
    version, *files = done.stdout.split()
    assert version == tfdp_layers.__version__
    assert len(files) == 3
    assert all(file.startswith(str(installed)) for file in files)


# Imports much, and prints the files of all that was imported of the package.
IMPORTED = """
import sys, tfdp_layers, tfdp_layers.accounting, tfdp_layers.callbacks, tfdp_layers.commands.train
print(*(m.__file__ for name, m in sys.modules.items() if name.split(".")[0] == "tfdp_layers"))
"""


@pytest.mark.slow
def test_python_started_among_the_sources_imports_nothing_but_the_sources(installed):
    done = python(IMPORTED, ROOT, PYTHONPATH=str(installed))
    assert done.returncode == 0, done.stderr
    files = {Path(file).relative_to(ROOT).parts[0] for file in done.stdout.split()}
    assert files == {"tfdp_layers", "accounting", "callbacks"}


@pytest.mark.slow
def test_sources_of_one_checkout_are_not_mixed_with_those_installed_from_another(tmp_path):
    copy = copy_sources(tmp_path)
    (copy / "tests").mkdir()  # beside the package, and no part of it
    (copy / "tfdp_layers" / "metrics.py").unlink()
    (copy / "accounting" / "proofs.py").touch()
    lost = """
import importlib, tfdp_layers.accounting.proofs
for name in ("tfdp_layers.metrics", "tfdp_layers.accounting.nothing", "tfdp_layers.tests"):
    try:
        raise AssertionError(importlib.import_module(name))
    except ModuleNotFoundError as error:
        assert error.name == name
"""
    # With the editable installation that these tests run in, which has what the copy lost.
    done = subprocess.run([sys.executable, "-c", IMPORTED + lost], cwd=copy, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()
    assert all(Path(file).is_relative_to(copy) for file in done.stdout.split())


def test_sources_without_the_folders_beside_them_are_refused_with_the_ways_out(tmp_path, installed):
    copy = copy_sources(tmp_path)
    (copy / "callbacks").rename(copy / "elsewhere")
    done = python("import tfdp_layers", copy, PYTHONPATH=str(installed))
    assert done.returncode != 0
    assert f"ImportError: tfdp_layers was imported from {copy / 'tfdp_layers'}" in done.stderr
    for part in ("accounting and callbacks", "Install the package again", "run Python where"):
        assert part in done.stderr


def test_the_folders_beside_the_sources_are_those_that_an_installation_puts_inside():
    from tfdp_layers.source_folder import _BESIDE

    mapped = re.findall(r"^    tfdp_layers\.(\w+) = (\w+)$", (ROOT / "setup.cfg").read_text(), flags=re.M)
    assert sorted(mapped) == sorted((name, name) for name in _BESIDE)


def test_the_wheel_names_version_entry_point_and_extras(wheel):
    with zipfile.ZipFile(wheel) as archive:
        texts = {Path(name).name: archive.read(name).decode() for name in archive.namelist() if ".dist-info/" in name}
    assert f"Version: {tfdp_layers.__version__}\n" in texts["METADATA"]
    assert "tfdp = tfdp_layers.commands.cli:main" in texts["entry_points.txt"]
    assert {"tensorboard", "test"} <= set(re.findall(r"^Provides-Extra: (\w+)$", texts["METADATA"], flags=re.M))


def test_no_command_installs_by_name_what_is_on_no_index():
    """Whoever took the name there could run code on our users' machines."""
    folders = [ROOT, *(ROOT / name for name in ("tfdp_layers", "accounting", "callbacks", "docs", "examples"))]
    files = {file for folder in folders for file in (folder.glob if folder == ROOT else folder.rglob)("*.*")}
    texts = {file: file.read_text(encoding="utf-8") for file in files if file.suffix in (".md", ".py", ".toml", ".cfg")}
    assert len(texts) > 200
    assert not [file.name for file, text in texts.items() if re.search(r"install\s[^`\n]*tfdp[-_]layers[\['\" ]", text)]


def test_the_entry_point_is_the_command():
    (entry,) = (entry for entry in entry_points(group="console_scripts") if entry.name == "tfdp")
    assert entry.load()(["--version"]) == 0


def test_these_modules_load_no_tensorflow():
    """In one process: the first that loads one ends it, by name."""
    modules = [
        f"tfdp_layers{m}" for m in ("", ".sampling", ".accounting", ".commands.cli", ".commands.train", ".plots")
    ]
    code = (
        "import importlib, sys\n"
        f"for module in {modules}:\n"
        "    importlib.import_module(module)\n"
        "    assert not {'tensorflow', 'keras', 'torch', 'jax'} & set(sys.modules), module\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_every_public_name_that_is_listed_can_be_had():
    missing = set()
    for name in tfdp_layers.__all__:
        try:
            getattr(tfdp_layers, name)
        except (AttributeError, ImportError):
            missing.add(name)
    assert not missing


# The README -----------------------------------------------------------------------------------------------------------


def readme_command(name: str) -> str:
    (command,) = re.findall(rf"^<!-- command: {name} -->\n```sh\n(.*?)\n```$", README, flags=re.M | re.S)
    return command


def test_the_readme_is_short():
    assert README.count("\n") <= 120, "the rest belongs to the site"


def test_ci_runs_the_readmes_commands_and_has_none_of_its_own():
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert "$(readme_command train)" in script
    assert "$(readme_command test)" in script
    assert "pytest" not in script, "the tests are run by the README's command alone"
    assert readme_command("test").split(" && ")[-1].startswith("pytest")
    assert readme_command("train").split(" && ")[-1].startswith("tfdp train --method backprop_clipping")
    assert 'main_job bash -euc "$train"' in script
    assert 'main_job offline ". .venv/bin/activate && ${train##*&& }"' in script


def test_the_readmes_train_command_is_understood():
    from tfdp_layers.commands import cli
    from tfdp_layers.commands.training_options import TrainingOptions

    arguments = readme_command("train").split(" && ")[-1].split()[2:]
    options = TrainingOptions.from_options(cli._command("train").parse(arguments))
    assert (options.dataset, options.model, options.epsilon, options.delta) == (None, "scattering", 2.7, 1e-5)


def test_the_readmes_code_runs_as_it_stands_on_smaller_arrays(monkeypatch, capsys):
    (code,) = re.findall(r"^```python\n(.*?)^```$", README, flags=re.M | re.S)
    assert len([line for line in code.splitlines() if line.strip() and line[0] != "#"]) <= 28
    rng = np.random.default_rng(0)
    x, y = rng.random((256, 28, 28, 1), np.float32), rng.integers(0, 10, 256)
    small = datasets.Dataset("fashion_mnist", x, y, x[:32].copy(), y[:32].copy(), "made up", 10)
    monkeypatch.setattr(datasets, "load_default", lambda: small)
    exec(in_one_epoch(code), {})
    assert_spent(capsys.readouterr().out)


@pytest.mark.slow
@pytest.mark.parametrize("place", slow_but(["another folder"], ["the checkout", "another folder"]))
def test_the_readmes_code_runs_where_its_own_command_leaves_the_user(installed, tmp_path, place):
    """In a process of its own, after an installation that is not editable, on a machine without network and data."""
    (code,) = re.findall(r"^```python\n(.*?)^```$", README, flags=re.M | re.S)
    nobody = "http://127.0.0.1:9"
    environment = {"KERAS_HOME": str(tmp_path), "https_proxy": nobody, "HTTPS_PROXY": nobody, "no_proxy": ""}
    cwd = ROOT if place == "the checkout" else tmp_path
    done = python("\n" + in_one_epoch(code), cwd, PYTHONPATH=str(installed), **environment)
    assert done.returncode == 0, done.stderr
    assert_spent(done.stdout)
    if not datasets._DEBIAN.exists():
        assert done.stdout.startswith("digits fashion_mnist is not on this machine")


def test_the_readmes_three_lines_run_as_they_stand_on_smaller_arrays(capsys):
    import keras

    import tfdp_layers as tfdp

    code = re.findall(r"^```py\n(.*?)^```$", README, flags=re.M | re.S)[0]
    assert len(code.splitlines()) == 3
    rng = np.random.default_rng(0)
    names = {
        "tfdp": tfdp,
        "keras_model": keras.Sequential([keras.Input((6,)), keras.layers.Dense(2)]),
        "loss": keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        "x": rng.normal(size=(120, 6)).astype("float32"),
        "y": rng.integers(0, 2, 120),
    }
    exec(code.replace("batch_size=2048, epochs=40", "batch_size=40, epochs=2"), names)
    ledger = names["model"].ledger
    assert ledger.steps == 6
    assert 0.99 * 2.7 < tfdp.accounting.epsilon(ledger, 1e-5) <= 2.7
    assert "oise multiplier" in capsys.readouterr().out


def in_one_epoch(code: str) -> str:
    assert code.count("batch_size=batch_size, epochs=40,") == 1
    return code.replace("epochs=40,", "epochs=1,")


def assert_spent(output: str) -> None:
    spent = float(re.findall(r"epsilon = ([0-9.]+) at delta", output)[0])
    assert 0.99 * 2.7 <= spent <= 2.7


def test_every_test_that_a_page_names_is_there():
    """By the end of its path, as the pages write it."""
    files = [f"/{file.relative_to(ROOT).as_posix()}" for file in (ROOT / "tests").rglob("*.py")]
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/**/*.md")]
    named = {(p.name, n) for p in pages for n in re.findall(r"`([\w./-]*test_\w+\.py)`", p.read_text("utf-8"))}
    assert len(named) > 10
    assert [one for one in sorted(named) if not any(file.endswith(f"/{one[1]}") for file in files)] == []


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", *(f"docs/{p.name}" for p in ROOT.glob("docs/*.md"))])
def test_links_to_files_lead_somewhere(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    targets = [t for t in re.findall(r"\]\(([^)#]+)\)", text) if "://" not in t]
    assert [t for t in targets if not ((ROOT / page).parent / t).exists()] == []


def test_the_site_finds_the_whole_package_however_it_is_installed(tmp_path):
    pytest.importorskip("mkdocs")
    spec = importlib.util.spec_from_file_location("site_package", ROOT / ".ci" / "site_package.py")
    hook = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(hook)
    for folder in ("tfdp_layers", "accounting", "callbacks"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "__init__.py").touch()
    handler = {"python": {}}
    plugin = types.SimpleNamespace(config={"handlers": handler})
    config = types.SimpleNamespace(config_file_path=str(tmp_path / "mkdocs.yml"), plugins={"mkdocstrings": plugin})
    for _ in range(2):
        hook.on_config(config)
    (found,) = map(Path, handler["python"]["paths"])
    assert sorted(str(file.parent.relative_to(found)) for file in found.rglob("*.py")) == [
        "tfdp_layers",
        "tfdp_layers/accounting",
        "tfdp_layers/callbacks",
    ]
