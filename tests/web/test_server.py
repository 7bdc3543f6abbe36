"""The app through its own interface: streams, visitors beside each other, cancelling, and what is refused."""

from __future__ import annotations

import json
import os
import re
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

pytest.importorskip("gradio", reason="needs the extra `web`")
pytest.importorskip("gradio_client", reason="needs the extra `web`")

import httpx  # noqa: E402
from gradio_client import Client, handle_file  # noqa: E402

import mmspec  # noqa: E402
from mmspec.io.images import open_image  # noqa: E402
from mmspec.run.scenes import demo_scenes
from mmspec.run.vlm_requests import VlmPrompt, encode
from mmspec.run.vlm_runs import sampling_arguments
from mmspec.web.model_cache import ModelCache  # noqa: E402
from mmspec.web.server import serving  # noqa: E402
from mmspec.zoo.world.render import render  # noqa: E402
from tests.evaluate.report.kept import grid, written  # noqa: E402
from tests.web.hostile import SVG, png_bomb  # noqa: E402
from tests.web.served import app, slow  # noqa: E402

QUESTION = "Describe this picture in detail."
RECORD = 4  # of the captions' outputs


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    written(folder / "one", grid())
    return folder


@pytest.fixture(scope="module")
def address(runs: Path):
    with app(runs) as found:
        yield found


@pytest.fixture(scope="module")
def client(address: str) -> Client:
    return Client(address, verbose=False)


@pytest.fixture(scope="module")
def picture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("picture") / "scene.png"
    render(demo_scenes()[0]).save(path)
    return path


@pytest.fixture(scope="module")
def model():
    return mmspec.zoo.load("vlm")


def plain_call(model, picture: Path, seed: int, temperature: float, tokens: int) -> str:
    """The text of the public call without a drafter."""
    llava, processor = model
    inputs = encode(processor, [VlmPrompt(QUESTION, (open_image(picture),))])
    ids = mmspec.generate(llava, seed=seed, max_new_tokens=tokens, **sampling_arguments(temperature), **inputs)
    return processor.tokenizer.decode(ids[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True).strip()


def ask(
    client: Client,
    picture: Path,
    *,
    seed: int = 0,
    temperature: float = 0.0,
    tokens: int = 40,
    drafter: str = "msd",
    text: str = QUESTION,
    law: str = "exact",
):
    return client.submit(handle_file(str(picture)), text, drafter, law, temperature, seed, tokens, api_name="/caption")


def error_of(job) -> str:
    with pytest.raises(Exception) as caught:  # noqa: B017, PT011 gradio_client has an exception of its own
        job.result(timeout=120)
    return str(caught.value)


def one_sentence(said: str) -> None:
    """Of ours: what was expected, what came, what to do."""
    assert said.count("expected") == 1 and said.count(", got ") == 1
    refused(said)


def refused(said: str) -> None:
    """One line that names nothing of the server; out of a control's range gradio itself says so."""
    assert 10 < len(said) < 400 and "\n" not in said and "Traceback" not in said and "upstream" not in said
    assert not re.search(r"/(tmp|root|home|usr|etc)/", said)


def test_streams_grow_and_end_as_the_plain_call(client: Client, picture: Path, model, monkeypatch) -> None:
    slow(monkeypatch, 0.01)
    job = ask(client, picture, tokens=40)
    job.result(timeout=120)
    records = [output[RECORD] for output in job.outputs() if isinstance(output[RECORD], dict)]
    for lane in ("plain", "fast"):
        texts = [record[lane].get("text", "") for record in records]
        assert all(after.startswith(before) for before, after in zip(texts, texts[1:], strict=False))
        assert len(set(texts)) > 2
        assert texts[-1] == plain_call(model, picture, 0, 0.0, 40)
    assert records[-1]["identical"] and records[-1]["done"] and not records[0]["done"]


def test_two_visitors_at_once_get_their_own_seeds(address: str, picture: Path, model) -> None:
    clients = [Client(address, verbose=False) for _ in range(2)]
    jobs = [ask(client, picture, seed=seed, temperature=1.0, tokens=30) for seed, client in enumerate(clients, 11)]
    texts = [job.result(timeout=120)[RECORD]["plain"]["text"] for job in jobs]
    assert texts == [plain_call(model, picture, seed, 1.0, 30) for seed in (11, 12)]
    assert texts[0] != texts[1]


def test_whoever_decodes_has_the_machine_for_himself(address: str, picture: Path, monkeypatch) -> None:
    """Rounds of two visitors do not come in turns."""
    from mmspec.core.round.loop import DecodingRun

    plain, order = DecodingRun.step, []

    def step(self) -> bool:
        order.append(self)  # itself, so that no other takes its place
        time.sleep(0.003)
        return plain(self)

    monkeypatch.setattr(DecodingRun, "step", step)
    clients = [Client(address, verbose=False) for _ in range(2)]
    for job in [ask(client, picture, tokens=8) for client in clients]:
        job.result(timeout=120)
    switches = sum(one is not other for one, other in zip(order, order[1:], strict=False))
    assert switches == len({id(one) for one in order}) - 1 == 7  # two warm ones and two lanes a visitor


def test_cancelling_ends_the_work(address: str, picture: Path, monkeypatch) -> None:
    moments = slow(monkeypatch, 0.05)
    client = Client(address, verbose=False)
    job = ask(client, picture, tokens=400)
    for _ in range(200):
        time.sleep(0.02)
        if len(job.outputs()) > 2:
            break
    job.cancel()
    asked = time.monotonic()
    time.sleep(2.0)
    assert len(moments) > 6 and moments[-1] - asked < 1.0
    # and the next one is served
    assert ask(client, picture, tokens=2).result(timeout=120)[RECORD]["done"]


def test_an_image_fills_and_is_identical_when_greedy(client: Client) -> None:
    status, headline, _, slider, difference, _, record = client.predict(
        "a large red star on a navy background", "scd", "exact", 0.0, 3, api_name="/image"
    )
    assert record["identical"] and record["fast"]["exact"] and 'data-state="done"' in status
    assert "Identical" in headline and "identical" in difference
    shown = slider["value"] if isinstance(slider, dict) else slider
    shown = [page_index["path"] if isinstance(page_index, dict) else page_index for page_index in shown]
    one, other = (open_image(path) for path in shown)
    assert one.tobytes() == other.tobytes()


def test_a_relaxed_image_says_that_it_is(client: Client) -> None:
    *_, record = client.predict("a large yellow heart", "lantern", "relaxed", 1.0, 3, api_name="/image")
    assert not record["fast"]["exact"] and record["plain"]["exact"] and not record["identical"]


def test_continuous_images_of_tolerance_zero_are_identical(client: Client) -> None:
    *_, difference, _, record = client.predict(
        "red circle", "mar", "cspd:tolerance=0", "exact", 1.0, 2, api_name="/continuous"
    )
    assert record["identical"] and "identical" in difference


def test_a_run_is_drawn(client: Client) -> None:
    status, drawn = client.predict("one", api_name="/pareto")
    assert "3 methods of one" in status and drawn.count('<img class="mm-plot"') == 1


@pytest.mark.parametrize("name", ["..", "../one", "/etc", "one/..", "none"])
def test_a_run_outside_the_folder_is_refused(client: Client, name: str) -> None:
    one_sentence(error_of(client.submit(name, api_name="/pareto")))


@pytest.mark.parametrize(
    "change",
    [{"tokens": 10_000}, {"tokens": 0}, {"temperature": 50.0}, {"seed": -1}, {"text": ""}, {"text": "x" * 3000},
     {"drafter": "../../x"}, {"law": "none"}, {"text": "what is <image> here"}],
)  # fmt: skip
def test_requests_beyond_the_limits_are_refused(client: Client, picture: Path, change: dict) -> None:
    refused(error_of(ask(client, picture, **change)))


@pytest.mark.parametrize(
    ("name", "body"), [("bomb.png", png_bomb()), ("a.svg", SVG), ("svg.png", SVG), ("a.txt", b"hello")]
)
def test_a_hostile_upload_is_refused(client: Client, tmp_path: Path, name: str, body: bytes) -> None:
    (tmp_path / name).write_bytes(body)
    one_sentence(error_of(ask(client, tmp_path / name)))


def joined(address: str, data: list, fn: int, visitor: str) -> httpx.Response:
    return httpx.post(f"{address}gradio_api/queue/join", json={"data": data, "fn_index": fn, "session_hash": visitor})


def number_of(address: str, name: str) -> int:
    found = httpx.get(f"{address}config").json()["dependencies"]
    return next(entry["id"] for entry in found if entry["api_name"] == name)


@pytest.mark.parametrize("path", ["/etc/passwd", "../../../etc/passwd", "http://127.0.0.1:1/a.png"])
def test_a_path_in_the_place_of_an_upload_is_refused(address: str, path: str) -> None:
    data = [{"path": path, "meta": {"_type": "gradio.FileData"}}, QUESTION, "msd", "exact", 0, 0, 8]
    answer = joined(address, data, number_of(address, "caption"), "path")
    assert answer.status_code == 422
    (found,) = answer.json()["detail"]
    one_sentence(f"{found['parameter_name']}: {found['message']}")


@pytest.mark.parametrize(("seed", "expected"), [(1.5, "expected a whole number"), ("0", "expected a number")])
def test_a_program_reads_why_a_seed_is_refused(client: Client, picture: Path, seed: object, expected: str) -> None:
    found = error_of(ask(client, picture, seed=seed))
    one_sentence(found)
    assert "seed: " in found and expected in found


def test_a_path_in_place_of_an_upload_is_refused_with_advice(client: Client, picture: Path) -> None:
    job = client.submit(str(picture), QUESTION, "msd", "exact", 0, 0, 8, api_name="/caption")
    assert "file: expected an uploaded file, got a text" in error_of(job)


@pytest.mark.parametrize(
    "name", ["../../../../tmp/escaped.png", "/tmp/escaped.png", "..\\..\\escaped.png", "a/../../escaped.png"]
)
def test_a_path_as_a_files_name_leads_nowhere(address: str, picture: Path, name: str) -> None:
    answer = httpx.post(f"{address}gradio_api/upload", files={"files": (name, picture.read_bytes())})
    if answer.status_code == 200:
        (stored,) = answer.json()
        assert Path(stored).name.endswith("escaped.png") and ".." not in Path(stored).parts and "/mmspec-web-" in stored
        assert Path(stored).is_file() and Path(stored) == Path(stored).resolve()
    assert not Path("/tmp/escaped.png").exists()


def test_a_prompt_of_ten_megabytes_is_refused(address: str) -> None:
    answer = joined(address, ["x" * 10_000_000, "scd", "exact", 0, 0], number_of(address, "image"), "large")
    assert answer.status_code == 413
    one_sentence(answer.json()["detail"])


def test_an_upload_beyond_the_limit_is_refused(runs: Path) -> None:
    with app(runs, file_bytes=1000) as address:
        answer = httpx.post(f"{address}gradio_api/upload", files={"files": ("a.png", b"x" * 50_000)})
        assert answer.status_code == 413
        one_sentence(answer.json()["detail"])


def test_of_fifty_requests_those_beyond_the_queue_are_refused_and_the_app_goes_on(runs: Path, monkeypatch) -> None:
    slow(monkeypatch, 0.5)
    with app(runs, waiting=4, seconds=0.3) as address:
        fn = number_of(address, "image")
        with ThreadPoolExecutor(10) as pool:
            answers = list(
                pool.map(lambda i: joined(address, ["a red circle", "scd", "exact", 0, i], fn, f"v{i}"), range(50))
            )
        refused = [answer for answer in answers if answer.status_code == 503]
        assert 40 <= len(refused) <= 46 and {answer.status_code for answer in answers} == {200, 503}
        for one in refused:
            one_sentence(one.json()["detail"])
        assert httpx.get(address).status_code == 200


def test_a_lane_that_takes_too_long_is_stopped(runs: Path, picture: Path, monkeypatch) -> None:
    with app(runs, seconds=0.5) as address:
        client = Client(address, verbose=False)
        slow(monkeypatch, 0.05)
        _, _, lanes, _, record = ask(client, picture, tokens=400).result(timeout=120)
    assert record["done"] and not record["plain"]["finished"] and not record["fast"]["finished"]
    # a value a round, and no round takes less than 0.05 s
    assert 1 <= record["plain"]["values"] <= 11 and record["plain"]["seconds"] >= 0.5
    assert lanes.count("expected to be done within 0.5 s, got no end by then, lower the length or the size") == 2


def test_the_server_is_on_the_loopback_interface_alone(address: str) -> None:
    port = int(address.rstrip("/").rpartition(":")[2])
    assert address.startswith("http://127.0.0.1:")
    others = {one[4][0] for one in socket.getaddrinfo(socket.gethostname(), port, socket.AF_INET)} - {"127.0.0.1"}
    for other in others:
        with socket.socket() as probe:
            probe.settimeout(1)
            assert other.startswith("127.") or probe.connect_ex((other, port)) != 0


def test_the_page_loads_nothing_from_elsewhere_and_sends_no_analytics(address: str) -> None:
    page = httpx.get(address).text
    assert not re.findall(r'(?:src|href)="(?:https?:)?//(?!127\.0\.0\.1)[^"]+"[^>]*(?:script|stylesheet|font)', page)
    assert "fonts.googleapis" not in page and "fonts.gstatic" not in page and "cdnjs" not in page
    config = httpx.get(f"{address}config").json()
    assert config["analytics_enabled"] is False and config.get("run_history") in (None, False)


def test_interfaces_that_pass_the_queue_are_closed(address: str) -> None:
    answer = httpx.post(f"{address}gradio_api/api/image", json={"data": ["a", "scd", "exact", 0, 0]})
    assert answer.status_code in (401, 403, 404, 405)


def test_files_of_the_server_are_not_handed_out(address: str) -> None:
    for path in ("/etc/passwd", "../../etc/passwd", str(Path(mmspec.__file__)), str(Path.cwd() / "pyproject.toml")):
        assert httpx.get(f"{address}gradio_api/file={path}").status_code in (403, 404)


def test_uploads_go_with_the_server(runs: Path, picture: Path) -> None:
    before = dict(os.environ)
    with app(runs) as address:
        (stored,) = httpx.post(f"{address}gradio_api/upload", files={"files": ("a.png", picture.read_bytes())}).json()
        assert Path(stored).is_file()
    assert not Path(stored).exists() and dict(os.environ) == before


def test_a_port_in_use_reports_one_error(runs: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(ValueError, match="--port: expected a port .* that is free") as caught:
            with serving(ModelCache(), runs=runs, port=taken.getsockname()[1]):
                pass
    assert "\n" not in str(caught.value)


def test_an_internal_error_is_logged_and_not_shown(address: str, monkeypatch, caplog) -> None:
    def broken(self: ModelCache, name: str = "t2i") -> None:
        raise RuntimeError("secret /root/path")

    monkeypatch.setattr(ModelCache, "image_resources", broken)
    said = error_of(Client(address, verbose=False).submit("a red circle", "scd", "exact", 0.0, 3, api_name="/image"))
    one_sentence(said)
    assert "secret" not in said and "secret" in caplog.text


def test_records_are_json(client: Client) -> None:
    *_, record = client.predict("a large yellow heart", "sjd", "exact", 0.0, 3, api_name="/image")
    json.dumps(record)


def test_the_program_of_the_page_on_the_app_runs(address: str, picture: Path, monkeypatch, capsys) -> None:
    page = (Path(mmspec.__file__).parents[1] / "docs" / "web.md").read_text(encoding="utf-8")
    (program,) = re.findall(r"```\n(from gradio_client.*?)```", page, re.S)
    monkeypatch.chdir(picture.parent)
    exec(program.replace("http://127.0.0.1:7860", address), {})
    assert len(capsys.readouterr().out.splitlines()[-1]) > 100


def test_every_interface_that_the_page_names_is_there_and_no_other(address: str) -> None:
    found = {
        one["api_name"]
        for one in httpx.get(f"{address}config").json()["dependencies"]
        if one["api_visibility"] == "public"
    }
    assert found - {"video"} == {"caption", "image", "continuous", "pareto"}
