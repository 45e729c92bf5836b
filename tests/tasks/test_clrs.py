"""CLRS-Text: the benchmark's own samples, the same to the byte, and answers that are right."""

import ast
import hashlib
import itertools
import subprocess
import sys
import warnings

import pytest

from sharpmax.tasks.clrs import Recipe, data, generate, generator, load, published, samples


def first(count, *what, **settings):
    return list(itertools.islice(samples(*what, **settings), count))


def numbers(text: str) -> list:
    return ast.literal_eval(",".join(text.strip().split()))


def test_the_published_sizes_and_seeds_are_read_and_not_copied():
    train, val = published("train"), published("val")
    assert len(train.sizes) == len(val.sizes) == 30
    assert train.sizes["bfs"] == (4, 5, 10, 11, 12, 15, 19, 23, 28, 31)
    assert (train.seeds, train.each) == ((0,), 10_000)
    assert (val.seeds, val.each) == ((3, 14, 35, 81, 94), 125)
    assert val.sizes["minimum"] == tuple(range(4, 65))


@pytest.mark.parametrize("trace", [False, True])
@pytest.mark.parametrize("algorithm", sorted(published("train").sizes))
def test_every_algorithm_has_samples(algorithm, trace):
    size = max(published("train").sizes[algorithm])
    (sample,) = first(1, algorithm, size, 0, trace=trace)
    assert sample.question.startswith(f"{algorithm}:\n")
    assert sample.question.endswith(":\n")
    assert sample.answer.endswith("\n\n")
    if algorithm != "segments_intersect":
        assert ("initial_trace" in sample.question) == trace


def test_answers_are_right():
    for sample in first(5, "insertion_sort", 9, 1, trace=False):
        given = numbers(sample.question.split("key: ")[1].split("\npred")[0])
        assert numbers(sample.answer) == sorted(given)
    for sample in first(5, "minimum", 9, 1, trace=False):
        given = numbers(sample.question.split("key: ")[1].split("\n")[0])
        assert int(sample.answer) == given.index(min(given))
    traced = first(5, "bubble_sort", 5, 1)
    assert [s.answer.split(" | ")[1] for s in traced] == [
        s.answer for s in first(5, "bubble_sort", 5, 1, trace=False)
    ]


def test_samples_are_those_of_the_benchmarks_own_loop():
    package = generator._package()
    wanted = package.clrs_generator({"bfs": [6]}, num_samples=4, use_hints=True, seed=3)
    assert [(s["question"], s["answer"]) for s in wanted] == [
        (s.question, s.answer) for s in first(4, "bfs", 6, 3)
    ]


@pytest.mark.parametrize("size", [4, 12, 20])
def test_points_are_drawn_as_the_benchmark_draws_them(size, monkeypatch):
    ours = first(3, "graham_scan", size, 0)
    package = generator._package()
    script = f"{generator.TEXT}.samplers".replace("clrs_text.", "")
    spec = generator.importlib.util.find_spec(script)
    fresh = generator.importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "tensorflow", generator.types.ModuleType("tensorflow"))
    spec.loader.exec_module(fresh)
    own = fresh.ConvexHullSampler._sample_data
    monkeypatch.setattr(package.samplers.ConvexHullSampler, "_sample_data", own)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of NumPy, for its cross product
        assert first(3, "graham_scan", size, 0) == ours


def test_nothing_called_tensorflow_is_left_behind():
    code = (
        "import sys; from sharpmax.tasks.clrs import samples; next(samples('bfs', 4, 0));"
        "assert 'tensorflow' not in sys.modules; import importlib.util;"
        "assert importlib.util.find_spec('tensorflow') is None"
    )
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True)


def digest(folder):
    files = sorted(folder.glob("*.arrow"))
    return hashlib.sha256(b"".join(f.name.encode() + f.read_bytes() for f in files)).hexdigest()


RECIPE = Recipe({"bfs": (5, 4), "minimum": (4,)}, seeds=(0, 3), each=3)


def test_a_data_set_is_the_same_to_the_byte_whoever_makes_it(tmp_path):
    told = []
    generate(RECIPE, tmp_path / "one", workers=1, tell=lambda *what: told.append(what))
    generate(RECIPE, tmp_path / "two", workers=2)
    assert digest(tmp_path / "one") == digest(tmp_path / "two")
    assert len(told) == 6
    table = load(tmp_path / "one")
    assert table.num_rows == 18
    assert table.schema == data.SCHEMA
    wanted = first(3, "bfs", 4, 0)
    assert table.slice(0, 3).to_pylist() == [sample._asdict() for sample in wanted]


def test_what_is_there_stays_and_what_is_missing_is_made(tmp_path):
    generate(RECIPE, tmp_path, workers=1)
    before = digest(tmp_path)
    kept = tmp_path / "minimum-4-0.arrow"
    made = kept.stat().st_mtime_ns
    (tmp_path / "bfs-4-0.arrow").unlink()
    with pytest.raises(ValueError, match="bfs-4-0.arrow is missing: sharpmax clrs generate"):
        load(tmp_path)
    (tmp_path / "bfs-4-0.arrow").write_text("nothing")
    with pytest.raises(ValueError, match="bfs-4-0.arrow cannot be read .*: remove it, and"):
        load(tmp_path)
    (tmp_path / "bfs-4-0.arrow").unlink()
    generate(RECIPE, tmp_path, workers=1)
    assert digest(tmp_path) == before
    assert kept.stat().st_mtime_ns == made


def test_other_recipes_and_versions_are_refused(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="holds no CLRS-Text"):
        load(tmp_path)
    generate(RECIPE, tmp_path, workers=1)
    about = tmp_path / "clrs.json"
    told = about.read_text()
    for changed, message in (
        (told.replace('"each": 3', '"each": 4'), "holds 3 samples, and clrs.json tells of 4"),
        ("[1]", "cannot be read .it is not whole.: generate the data anew"),
    ):
        about.write_text(changed)
        with pytest.raises(ValueError, match=message):
            load(tmp_path)
    about.write_text(told)
    other = Recipe(RECIPE.sizes, RECIPE.seeds, each=4)
    with pytest.raises(ValueError, match="another recipe .each differ.: choose another folder"):
        generate(other, tmp_path)
    monkeypatch.setattr(data, "version", lambda: "9.9")
    with pytest.raises(ValueError, match="another version, dm-clrs 2"):
        generate(RECIPE, tmp_path)
    assert load(tmp_path).num_rows == 18
    (tmp_path / "clrs.json").write_text("{")
    with pytest.raises(ValueError, match="clrs.json cannot be read"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Recipe.as_published("train", ("sort",)), "one of activity_selector, .*got 'sort'"),
        (lambda: Recipe.as_published("test"), "split must be train or val, got 'test'"),
        (lambda: Recipe({"bfs": (1,)}), "size of bfs must be at least 2, got 1"),
        (lambda: Recipe({"kmp_matcher": (2,)}), "at least 3, got 2"),
        (lambda: Recipe({"bfs": (4,)}, each=0), "each must be at least 1, got 0"),
        (lambda: Recipe({"bfs": (4,)}, seeds=(-1,)), "seed must be from 0 to .*, got -1"),
        (lambda: generate(RECIPE, "unused", workers=0), "workers must be at least 1, got 0"),
        (lambda: generate(RECIPE, __file__), "cannot be written"),
        (lambda: Recipe({}), "algorithms, sizes and seeds must be given"),
        (lambda: next(samples("sort", 4, 0)), "algorithm must be one of"),
    ],
)
def test_what_cannot_be(make, message):
    with pytest.raises(ValueError, match=message):
        make()
