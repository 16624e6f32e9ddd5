"""README, CONTRIBUTING and docs/: what they link and name is there, and every key has its place."""

import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    file.relative_to(ROOT).as_posix()
    for file in (*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "benchmarks").glob("*.md"))
)
LINK = re.compile(r"\]\((?!https?://)([^)#\s]*)(?:#([^)\s]+))?\)")
NAMED = re.compile(
    r"`((?:controller|workers|protocol|strategies|docs|examples|tests|benchmarks)/[\w/.]*(?:\.py|\.md|\.yaml|/))`"
)
BENCHMARK = re.compile(r"`[^`]*\bbenchmarks[./](\w+(?:\.(?!py\b)\w+)*)(?:\.py)?((?:\s[^`]*)?)`")
KEY = re.compile(r"^\| `([a-z_.]+)` \|", re.MULTILINE)


def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def anchors(page: Path) -> set[str]:
    """As GitHub makes them of headings: lower case, no punctuation, hyphens for spaces."""
    headings = re.findall(r"^#+ (.*)$", text_of(page), re.MULTILINE)
    plain = [re.sub(r"[^\w\- ]", "", heading.replace("`", "").lower()) for heading in headings]
    return {heading.replace(" ", "-") for heading in plain}


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page):
    file = ROOT / page
    for target, anchor in LINK.findall(text_of(file)):
        there = (file.parent / target).resolve() if target else file
        assert there.exists(), f"{page} links {target}, which is not there: it was moved or renamed"
        if anchor and there.suffix == ".md":
            assert anchor in anchors(there), f"{page} links {target}#{anchor}, but no heading there says so"


@pytest.mark.parametrize("page", PAGES)
def test_no_line_break_changes_what_a_page_shows(page):
    """A sentence that breaks before `1.` becomes a list, and a block of commands may join two of them."""
    lines = text_of(ROOT / page).splitlines()
    for number, (above, line) in enumerate(pairwise(lines), 2):
        is_item = re.match(r"\s*([-*]|\d+\.) ", above) or not above.strip()
        begins_list = re.match(r" +1\. ", line) and not is_item
        joins = line.startswith("    ") and len(re.findall(r"(?:^| )launch\.py\b", line)) > 1
        assert not begins_list, f"{page}, line {number}: this begins a list in the middle of a sentence"
        assert not joins, f"{page}, line {number}: these are two commands"


def test_the_readme_links_every_page():
    linked = {target for target, _ in LINK.findall(text_of(ROOT / "README.md"))}
    missing = [page for page in PAGES if page.startswith("docs/") and page not in linked]
    assert not missing, f"README.md links no {', '.join(missing)}: nobody will find it"


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "docs/architecture.md", "docs/glossary.md"])
def test_files_that_are_named_are_there(page):
    for name in NAMED.findall(text_of(ROOT / page)):
        assert (ROOT / name).exists(), f"{page} names {name}, which is not there: it was moved or renamed"


def benchmark(name: str) -> Path:
    place = ROOT / "benchmarks" / name.replace(".", "/")
    return place / "__main__.py" if place.is_dir() else place.with_suffix(".py")


@pytest.mark.parametrize("page", PAGES)
def test_benchmarks_that_are_named_are_there_with_these_options(page):
    for name, rest in BENCHMARK.findall(text_of(ROOT / page).replace("```", "")):
        module = benchmark(name)
        assert module.exists(), f"{page} names benchmarks.{name}, which is not there: it was moved or renamed"
        for option in re.findall(r"(?<=\s)--[\w-]+", rest):
            assert f'"{option}"' in text_of(module), f"benchmarks.{name} of {page} has no {option}"


def test_benchmarks_that_pages_name_are_listed():
    listed = {name for name, _ in BENCHMARK.findall(text_of(ROOT / "benchmarks" / "README.md"))}
    for page in PAGES:
        named = {name for name, _ in BENCHMARK.findall(text_of(ROOT / page).replace("```", ""))}
        missing = {name for name in named - listed if "argparse" in text_of(benchmark(name))}
        assert not missing, (
            f"{page} names {', '.join(sorted(missing))}, which benchmarks/README.md does not list"
        )


def test_the_drawing_names_modules_that_are_there():
    drawing = text_of(ROOT / "docs" / "architecture.svg")
    named = re.findall(r">((?:controller|core|workers|protocol|strategies)/[\w/.]+)<", drawing)
    assert len(named) > 12, "the drawing names the module of every station"
    for name in named:
        there = ROOT / ("controller" if name.startswith("core/") else "") / name
        assert there.exists(), f"docs/architecture.svg names {name}: mend docs/make_architecture.py"


def run_maker(words: str) -> str:
    """What `words` print in docs/, as the makers are run."""
    done = subprocess.run(
        [sys.executable, "-c", words], cwd=ROOT / "docs", capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def test_the_advanced_page_and_the_drawing_are_up_to_date():
    words = (
        "import make_architecture as a, make_configuration as m; "
        "print(m.render_advanced() == open('configuration_advanced.md').read(), "
        "m.render_rewards() == open('reward_kinds.md').read(), "
        "a.render() == open('architecture.svg').read())"
    )
    assert run_maker(words) == "True True True", (
        "run: python docs/make_configuration.py; python docs/make_architecture.py"
    )


def keys_of(page: str) -> list[str]:
    return KEY.findall(text_of(ROOT / "docs" / page))


def test_every_key_is_on_one_page():
    words = (
        "import make_configuration as m; "
        "print(*[k for n, f in m.Config.model_fields.items() for k, _ in m._fields(f.annotation, n + '.')])"
    )
    both = [*keys_of("configuration.md"), *keys_of("configuration_advanced.md")]
    assert sorted(both) == sorted(run_maker(words).split())


def test_the_first_page_names_keys_that_exist():
    words = (
        "import make_configuration as m; print(*[f'{n}.{k}' for n, ks in m.FIRST_PAGE.items() for k in ks])"
    )
    unknown = set(run_maker(words).split()) - set(keys_of("configuration.md"))
    assert not unknown, f"FIRST_PAGE of docs/make_configuration.py names {unknown}: renamed, or taken away"


def test_the_first_page_has_what_the_readme_sets():
    readme = text_of(ROOT / "README.md")
    sections = yaml.safe_load(readme.partition("```yaml")[2].partition("```")[0])
    keys = {f"{section}.{key}" for section, values in sections.items() for key in values}
    assert len(keys) > 8
    assert keys <= set(keys_of("configuration.md"))


def test_a_kind_of_reward_with_another_default_than_every_entry_says_so():
    _, *kinds = text_of(ROOT / "docs" / "reward_kinds.md").split("\n## ")
    limit = re.compile(r"^\| `timeout_s` .*`([\d.]+)` \|", re.MULTILINE)
    found = {text.partition("\n")[0]: limit.findall(text) for text in kinds}
    assert {name: limits for name, limits in found.items() if limits} == {
        "judge": ["600.0"],
        "code": ["900.0"],
    }
