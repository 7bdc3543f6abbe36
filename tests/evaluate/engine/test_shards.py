"""Shards grow by whole lines, merge, and refuse what contradicts them or leads out of the run."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from mmspec.evaluate.base.media import inside, load_output, run_folder, store_output
from mmspec.evaluate.engine.records import decode_row, encode_row, request_seed
from mmspec.evaluate.engine.shards import Shard, read_run, read_shards, run_name
from tests.evaluate.report import kept

ABOUT = {"code": "1", "seed": 0}


def sample(prompt: str, token_hash: str = "a", **changed: object) -> dict:
    """A whole record about a prompt of this name."""
    return {**kept.sample("ar", 0, token_hash=token_hash), "prompt": prompt, "key": key(prompt), **changed}


def key(prompt: str) -> str:
    return f"t2i-ar-exact-1.0/{prompt}@d/0"


def took(seconds: float) -> dict:
    return {"seconds": seconds, "parts": None}


def test_a_line_cut_off_by_a_kill_is_left_out_and_the_file_is_not_touched(tmp_path: Path) -> None:
    shard = Shard(tmp_path, ABOUT, kept.header())
    shard.add([sample("1"), sample("2")])
    with open(shard.file, "ab") as handle:
        handle.write(b'{"kind": "sample", "key": "3", "fai')
    before = shard.file.read_bytes()
    assert set(read_run(tmp_path).samples) == {key("1"), key("2")} and shard.file.read_bytes() == before


def test_writers_at_once_have_files_of_their_own_and_lose_no_line(tmp_path: Path) -> None:
    def write(number: int) -> None:
        shard = Shard(tmp_path, ABOUT, kept.header())
        for place in range(50):
            shard.add([sample(f"{number}/{place}"), sample(f"shared/{place}", time=took(number + 1.0))])

    writers = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    run = read_run(tmp_path)
    assert len(list((tmp_path / "shards").iterdir())) == 4 and len(run.headers) == 4
    assert len(run.samples) == 4 * 50 + 50


def test_two_shards_must_agree_on_a_sample_except_for_times(tmp_path: Path) -> None:
    Shard(tmp_path, ABOUT, kept.header()).add([sample("1")])
    Shard(tmp_path, ABOUT, kept.header()).add([sample("1", time=took(9.0))])
    assert len(read_run(tmp_path).samples) == 1
    Shard(tmp_path, ABOUT, kept.header()).add([sample("1", "b")])
    with pytest.raises(
        ValueError, match="expected the output that another shard has for t2i-ar-exact-1.0/1@d/0, got another output"
    ):
        read_run(tmp_path)


def test_a_success_takes_the_place_of_a_failure_in_any_order(tmp_path: Path) -> None:
    for folder, order in ((tmp_path / "a", (0, 1)), (tmp_path / "b", (1, 0))):
        both = [sample("1", failed="no weights"), sample("1")]
        for number in order:
            Shard(folder, ABOUT, kept.header()).add([both[number]])
        assert read_run(folder).samples[key("1")]["failed"] is None


def test_shards_of_another_run_are_refused(tmp_path: Path) -> None:
    Shard(tmp_path, ABOUT, kept.header()).add([sample("1")])
    assert read_shards(tmp_path, run_name(ABOUT)).samples
    for other in ({"code": "2", "seed": 0}, {"code": "1", "seed": 1}):
        with pytest.raises(ValueError, match="expected shards of one run"):
            read_shards(tmp_path, run_name(other))
    Shard(tmp_path, {"code": "2", "seed": 0}, kept.header()).add([sample("2")])
    with pytest.raises(ValueError, match="expected shards of one run"):
        read_run(tmp_path)


@pytest.mark.parametrize(
    "line", ["[]", "{", '{"kind": "else"}', '{"key": 1}', '{"kind": "sample"}', '{"kind": "header", "schema": 7}']
)
def test_foreign_files_report_one_error(line: str, tmp_path: Path) -> None:
    (tmp_path / "shards").mkdir()
    (tmp_path / "shards" / "x.jsonl").write_text(f"{line}\n")
    with pytest.raises(ValueError, match="x.jsonl.*: expected .*, got .*; "):
        read_run(tmp_path)


def test_an_empty_folder_is_refused_for_reading_and_accepted_for_a_new_run(tmp_path: Path) -> None:
    assert not read_shards(tmp_path, "any").samples
    with pytest.raises(ValueError, match="RUN: expected a folder with shards of a run"):
        read_run(tmp_path)


@pytest.mark.parametrize("path", ["..", "../run", "a/../../b", "/tmp/../etc"])
def test_a_run_is_named_without_climbing(path: str) -> None:
    with pytest.raises(ValueError, match=r"RUN: expected a folder without '\.\.' in its path, got "):
        run_folder(path)


@pytest.mark.parametrize(
    "name", ["../outside.png", "/etc/passwd", "media/../../outside.png", "media/link.png", "linked/x.png"]
)
def test_a_record_that_leads_out_of_the_run_is_refused(name: str, tmp_path: Path) -> None:
    run = tmp_path / "run"
    (run / "media").mkdir(parents=True)
    Image.new("RGB", (8, 8)).save(tmp_path / "outside.png")
    (run / "media" / "link.png").symlink_to(tmp_path / "outside.png")
    (run / "linked").symlink_to(tmp_path)
    with pytest.raises(ValueError, match="expected records that name files inside the run's folder"):
        load_output(run, {"file": name, "frames": 1}, "picture")


def test_a_shard_that_is_a_link_to_elsewhere_is_refused(tmp_path: Path) -> None:
    run, other = tmp_path / "run", tmp_path / "other.jsonl"
    other.write_text(json.dumps({"kind": "header", "schema": 1, "run": "x"}) + "\n")
    (run / "shards").mkdir(parents=True)
    (run / "shards" / "a.jsonl").symlink_to(other)
    with pytest.raises(ValueError, match="inside the run's folder"):
        read_run(run)
    assert inside(run, "shards/b.jsonl") == run / "shards" / "b.jsonl"


def test_pictures_and_films_come_back_bit_for_bit(tmp_path: Path) -> None:
    film = np.random.default_rng(0).integers(0, 256, (5, 6, 8, 3), "uint8")
    kept = store_output(tmp_path, "cell/../../prompt with / and é@1/0", film, "film")
    assert kept["frames"] == 5 and inside(tmp_path, kept["file"]).is_file()
    assert np.array_equal(load_output(tmp_path, kept, "film"), film)
    picture = Image.fromarray(film[0])
    again = load_output(tmp_path, store_output(tmp_path, "cell/p@1/0", picture, "picture"), "picture")
    assert (
        np.array_equal(again, picture)
        and load_output(tmp_path, store_output(tmp_path, "k", "said", "text"), "text") == "said"
    )
    names = [
        store_output(tmp_path, f"cell/{text}@1/0", picture, "picture")["file"]
        for text in ("a b", "a-b", "a/b", "x" * 400)
    ]
    assert len(set(names)) == 4


def test_rows_of_features_come_back_bit_for_bit() -> None:
    row = np.random.default_rng(0).normal(size=97).astype(np.float32)
    assert np.array_equal(decode_row(encode_row(row)), row)


def test_seeds_do_not_collide_and_never_change() -> None:
    assert len({request_seed(0, f"p{n}", s) for n in range(200) for s in range(5)}) == 1000
    assert request_seed(0, "p1", 0) == request_seed(0, "p1", 0) != request_seed(1, "p1", 0) < 1 << 31
