from __future__ import annotations

import http.client
import json
import threading
from contextlib import contextmanager

import pytest
from report_runs import event, training, write_events

from hf_recipes.core.run_directory import RunDirectory
from hf_recipes.report.serve import make_server


@contextmanager
def serving(*paths):
    with make_server([RunDirectory(path) for path in paths], 0) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield server.server_port
        finally:
            server.shutdown()


def get(port: int, path: str, host: str | None = None) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("GET", path, headers={"Host": host or f"127.0.0.1:{port}"})
    answer = connection.getresponse()
    return answer.status, answer.read().decode("utf-8")


def news(port: int, version: str = "") -> tuple[int, dict]:
    status, body = get(port, f"/data.json?version={version}")
    return status, json.loads(body) if body else {}


def test_news_come_only_where_there_are_any(tmp_path):
    write_events(tmp_path, training(10))
    (tmp_path / "status.json").write_text('{"code": 0, "sentence": "finished"}')
    with serving(tmp_path) as port:
        assert news(port)[0] == 200
        version = news(port)[1]["data"]["version"]
        assert news(port, version) == (204, {})
        write_events(tmp_path, [event("log", 11, loss=1.0)], mode="a")
        status, fresh = news(port, version)
        assert status == 200
        assert fresh["data"]["version"] != version
        assert "at step 11" in fresh["data"]["charts"][0]["summary"]
        (tmp_path / "checkpoint-8").mkdir()
        status, fresh = news(port, fresh["data"]["version"])
        assert "checkpoint-8" in fresh["rest"]


def test_the_page_may_ask_its_own_server_and_nobody_else(tmp_path):
    write_events(tmp_path, training(5))
    with serving(tmp_path) as port:
        status, page = get(port, "/")
    assert status == 200
    assert "connect-src 'self'\"" in page


@pytest.mark.parametrize("host", ["evil.example:80", "evil.example", "127.0.0.1.evil.example:8765"])
def test_a_foreign_name_for_this_machine_is_refused(tmp_path, host):
    write_events(tmp_path, training(5))
    with serving(tmp_path) as port:
        assert get(port, "/data.json", host)[0] == 403
        assert get(port, "/data.json", f"localhost:{port}")[0] == 200


def test_nothing_but_the_page_is_served(tmp_path):
    write_events(tmp_path, training(5))
    with serving(tmp_path) as port:
        for path in ("/run.json", "/../run.json", "/events.jsonl", "//etc/passwd"):
            assert get(port, path)[0] == 404


def test_several_runs_are_followed_together(tmp_path):
    for name in ("a", "b"):
        write_events(tmp_path / name, training(5))
    with serving(tmp_path / "a", tmp_path / "b") as port:
        assert news(port)[1]["data"]["runs"] == ["a", "b"]
