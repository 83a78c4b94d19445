"""The clients against a server that answers what the test says, and label values against PromQL's own parser."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from hypothesis import given, settings
from hypothesis import strategies as st

from fusewire_webhook.errors import PrometheusError
from fusewire_webhook.watch.prometheus import Alertmanager, Prometheus, duration, label_value, matchers

OK: dict[str, Any] = {"status": "success", "data": {"resultType": "vector", "result": []}}


@pytest.fixture
async def answers() -> AsyncIterator[dict[str, Any]]:
    """``body`` and ``status`` of every answer; the base URL is ``url``, an open session ``session``."""
    told: dict[str, Any] = {"body": OK, "status": 200}

    async def answer(request: web.Request) -> web.Response:
        told["authorization"] = request.headers.get("Authorization")
        body = told["body"] if isinstance(told["body"], str) else json.dumps(told["body"])
        return web.Response(status=told["status"], text=body)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    told["url"] = f"http://127.0.0.1:{runner.addresses[0][1]}"
    async with aiohttp.ClientSession() as session:
        told["session"] = session
        yield told
    await runner.cleanup()


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("<html>", "without JSON; is it Prometheus?"),
        ({"status": "error", "error": "query timed out"}, "query timed out"),
        ({**OK, "warnings": ["one store did not answer"]}, "may be partial: one store did not answer"),
        ({"status": "success"}, "no data"),
        ({"status": "success", "data": {}}, "in an unknown shape"),
        ({"status": "success", "data": {"resultType": "matrix", "result": []}}, "answers a matrix"),
        (
            {"status": "success", "data": {"resultType": "vector", "result": [{"metric": {}}]}},
            "in an unknown shape",
        ),
        ([], "no data"),
    ],
)
async def test_what_is_not_a_whole_answer_is_an_error(answers: dict[str, Any], body: Any, words: str) -> None:
    """An error, a partial answer and another shape are one line of error, never an empty answer."""
    answers["body"] = body
    client = Prometheus(answers["url"], session=answers["session"])
    with pytest.raises(PrometheusError) as caught:
        await client.query("up")
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


async def test_answers_are_typed(answers: dict[str, Any]) -> None:
    """Vectors with NaN and infinities, and scalars, come back as samples."""
    client = Prometheus(answers["url"], session=answers["session"])
    rows = [{"metric": {"run": "r"}, "value": [1.5, "+Inf"]}]
    answers["body"] = {"status": "success", "data": {"resultType": "vector", "result": rows}}
    (sample,) = await client.query("x")
    assert (sample.labels, sample.value, sample.time) == ({"run": "r"}, float("inf"), 1.5)
    answers["body"] = {"status": "success", "data": {"resultType": "scalar", "result": [2.5, "2.5"]}}
    assert await client.now() == 2.5


async def test_server_that_is_away_is_an_error() -> None:
    """A refused connection is one line that names the address."""
    async with aiohttp.ClientSession() as session:
        for client in (
            Prometheus("http://127.0.0.1:9", session=session),
            Alertmanager("http://127.0.0.1:9", session=session),
        ):
            with pytest.raises(PrometheusError, match=r"at http://127\.0\.0\.1:9/-/ready cannot be reached"):
                await client.ready()


async def test_unready_server_is_an_error(answers: dict[str, Any]) -> None:
    """503 while the log is replayed is not ready."""
    answers.update(status=503, body="Service Unavailable")
    with pytest.raises(PrometheusError, match="is not ready \\(503\\): Service Unavailable"):
        await Prometheus(answers["url"], session=answers["session"]).ready()


async def test_alertmanager_that_answers_an_error_is_no_empty_list(answers: dict[str, Any]) -> None:
    """An error object where a list should be is an error."""
    answers.update(status=500, body={"code": 500, "message": "boom"})
    client = Alertmanager(answers["url"], session=answers["session"])
    for ask in (client.silences, client.alerts, client.status):
        with pytest.raises(PrometheusError, match="answered 500"):
            await ask()


async def test_password_in_the_url_is_sent_and_never_told(answers: dict[str, Any]) -> None:
    """Basic authentication comes from the URL; no message holds it."""
    url = answers["url"].replace("http://", "http://ada:s3cret@")
    answers["body"] = {"status": "error", "error": "boom"}
    client = Prometheus(url + "/", session=answers["session"])
    with pytest.raises(PrometheusError) as caught:
        await client.query("up")
    assert answers["authorization"] == "Basic " + base64.b64encode(b"ada:s3cret").decode()
    away = Prometheus("http://ada:s3cret@127.0.0.1:9", session=answers["session"])
    with pytest.raises(PrometheusError) as other:
        await away.ready()
    assert "s3cret" not in str(caught.value) + str(other.value) + client.base_url


def test_durations_are_whole_milliseconds() -> None:
    """PromQL knows no fractions; nothing becomes a range of zero."""
    assert [duration(seconds) for seconds in (0.0, 0.35, 74.0)] == ["1ms", "350ms", "74000ms"]


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=20))
@settings(max_examples=200)
def test_no_label_value_leaves_its_quotes(text: str) -> None:
    """Every quote and backslash inside is escaped, and no line ends inside."""
    quoted = label_value(text)
    inner = quoted[1:-1].replace("\\\\", "").replace('\\"', "")
    assert quoted[0] == quoted[-1] == '"'
    assert '"' not in inner
    assert "\n" not in inner
    assert json.loads(quoted) == text


@pytest.mark.skipif(shutil.which("promtool") is None, reason="needs promtool")
def test_promtool_reads_hostile_run_names_as_one_selector(tmp_path: Any) -> None:
    """PromQL's own parser takes what a hostile name becomes for one selector with that value."""
    names = ['a"} or up{b="', "a\\", "é\t\n\x00", "{{ $x }}", "'`"]
    rules = [{"record": "x", "expr": "up" + matchers(run=name, attempt=3)} for name in names]
    path = tmp_path / "rules.yaml"
    path.write_text(json.dumps({"groups": [{"name": "g", "rules": rules}]}))
    done = subprocess.run(["promtool", "check", "rules", str(path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
