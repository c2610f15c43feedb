"""The documents say what is: every setting, metric and folder stands in its table, and nothing else does."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

from app.http.metrics import METRICS
from config.settings import SETTINGS
from tests.support.server import Server

ROOT = Path(__file__).parents[1]


def rows(file: str, first_column: str) -> dict[str, list[str]]:
    """Rows of the table whose first heading this is: their first cell without back-ticks, and the other cells."""
    lines = iter((ROOT / file).read_text().splitlines())
    for line in lines:
        if line.startswith(f"| {first_column} |"):
            next(lines)
            break
    table = {}
    for line in lines:
        if not line.startswith("|"):
            break
        first, *others = [cell.strip() for cell in line.strip("|").split("|")]
        table[first.replace("`", "")] = others
    return table


def shown(default: object) -> str:
    """A default as the README shows it."""
    if default is None or default == ():
        return ""
    if isinstance(default, bool):
        return str(default).lower()
    if isinstance(default, Path):
        return f"`{default}`"
    if isinstance(default, float):
        return f"{default:g}"
    if isinstance(default, int) and default >= 2**20 and default % 2**20 == 0:
        return f"{default >> 20} MiB"
    return str(default)


def test_the_readme_lists_every_setting_with_its_default_and_meaning() -> None:
    expected = {", ".join(each.variables): [shown(each.default), each.meaning] for each in SETTINGS}
    assert rows("README.md", "variable") == expected


def test_the_metrics_page_lists_every_metric_of_the_house() -> None:
    expected = {name: [kind, ", ".join(labels), meaning] for name, kind, labels, meaning in METRICS}
    assert rows("docs/metrics.md", "metric") == expected


def test_the_architecture_page_names_every_folder_of_the_application() -> None:
    named = {name.strip("/") for name in rows("docs/ARCHITECTURE.md", "folder")}
    folders = {f"app/{each.name}" for each in (ROOT / "app").iterdir() if each.is_dir() and not each.name.startswith("__")}
    assert folders <= named, folders - named


def test_the_architecture_page_draws_the_layers_of_the_contract() -> None:
    contract = re.search(r"layers =\n((?:    .+\n)+)", (ROOT / "setup.cfg").read_text())
    assert contract is not None
    names = re.findall(r"[a-z]+", re.sub(r"\(\w+\)", "", contract.group(1)))
    drawn = re.search(r"Imports go down only: `(.+?)`", (ROOT / "docs/ARCHITECTURE.md").read_text(), re.DOTALL)
    assert drawn is not None
    assert re.findall(r"[a-z]+", drawn.group(1)) == names


def test_every_invariant_of_the_architecture_page_has_tests_that_name_it_and_no_test_names_another() -> None:
    page = (ROOT / "docs/ARCHITECTURE.md").read_text().partition("\n## Invariants\n")[2]
    named = {number.lower() for number in re.findall(r"^\| ([A-Z]\d+) \|", page, re.MULTILINE)}
    tests = "".join(each.read_text() for each in (ROOT / "tests").rglob("test_*.py"))
    cited = {number for name in re.findall(r"def test_((?:[cmsw]\d+_(?:to_)?)+)", tests) for number in re.findall(r"[cmsw]\d+", name)}
    assert cited == named


def test_every_link_between_the_documents_leads_somewhere() -> None:
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))):
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_the_examples_of_the_api_page_are_taken(server: Server) -> None:
    server.repository("files")
    assert server.post("/api/v1/groups", json={"name": "devs"}).status_code == 201
    examples = re.findall(r"^post (\S+) '(.+)'$", (ROOT / "docs/api.md").read_text(), re.MULTILINE)
    assert len(examples) >= 4
    for path, body in examples:
        answer = server.post(f"/api/v1/{path}", data=body, headers={"Content-Type": "application/json"})
        assert answer.status_code == 201, (path, answer.text)


def test_the_example_of_uploads_in_parts_runs_as_it_stands(server: Server, tmp_path: Path) -> None:
    server.repository("parted")
    section = (ROOT / "docs/api.md").read_text().partition("\n## Uploads in parts\n")[2]
    example = re.search(r"^```sh\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    assert example is not None
    script = example[1].replace("http://localhost:8080", server.url).replace("/repositories/files/", "/repositories/parted/")
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script], cwd=tmp_path, env={**os.environ, "P": server.password},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert server.get("/raw/parted/images/disk.img").content == (tmp_path / "disk.img").read_bytes()


def test_the_api_page_lists_every_operation(server: Server) -> None:
    document = server.get("/api/v1/openapi.json").json()
    methods = ("get", "put", "post", "patch", "delete")
    expected = {
        f"{method.upper()} {path}": [operations[method]["summary"]]
        for path, operations in document["paths"].items()
        for method in methods
        if method in operations
    }
    assert rows("docs/api.md", "operation") == expected
