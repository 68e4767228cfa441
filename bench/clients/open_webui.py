"""Open WebUI in a browser: a question typed on its page, two tools that it runs itself: URL.

Its server is started as a person starts it, `open-webui serve`, without a login; tools and a
model that may use them are made over its API. It needs Chromium on the path.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import requests
from playwright.sync_api import sync_playwright

TOOLS = '''
class Tools:
    def temperature(self, city: str) -> str:
        """The temperature of a city.
        :param city: its name
        """
        return f"{city}: 21"

    def rounded(self, value: float) -> str:
        """A number without its fraction.
        :param value: the number
        """
        return str(round(value))
'''
STARTING = 300.0  # seconds: it took 20 s on two quiet cores, over a minute on busy ones


def main(url: str) -> None:
    """Start it, teach it the tools, ask once and tell what came."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as data:
        env = os.environ | {
            "DATA_DIR": data,
            "WEBUI_AUTH": "False",
            "WEBUI_SECRET_KEY": "none",
            "OPENAI_API_BASE_URL": f"{url}/v1",
            "OPENAI_API_KEY": "none",
            "ENABLE_OLLAMA_API": "False",
            "RAG_EMBEDDING_ENGINE": "openai",  # its own would be fetched from a hub
            "OFFLINE_MODE": "True",
            "ENABLE_TITLE_GENERATION": "False",
            "ENABLE_FOLLOW_UP_GENERATION": "False",
            "ENABLE_TAGS_GENERATION": "False",
        }
        program = Path(sys.executable).with_name("open-webui")
        with (Path(data) / "log").open("w+b") as log:
            page = subprocess.Popen(
                [program, "serve", "--host", "127.0.0.1", "--port", str(port)],
                env=env,
                stdout=log,
                stderr=log,
            )
            try:
                talk(f"http://127.0.0.1:{port}", page)
            except Exception:
                log.seek(0)
                print(log.read().decode(errors="replace")[-3000:])
                raise
            finally:
                page.terminate()
                page.wait(30)


def talk(page_url: str, page: subprocess.Popen[bytes]) -> None:
    """Wait until it answers, sign in, make the tools, and ask."""
    until = time.monotonic() + STARTING
    while True:
        try:
            requests.get(f"{page_url}/health", timeout=5).raise_for_status()
            break
        except requests.RequestException:
            if page.poll() is not None or time.monotonic() > until:
                raise
            time.sleep(0.5)
    session = requests.Session()

    def post(path: str, body: object) -> requests.Response:
        answer = session.post(f"{page_url}{path}", json=body, timeout=120, stream=True)
        assert answer.ok, f"{path}: {answer.status_code} {answer.text[:500]}"
        return answer

    token = post("/api/v1/auths/signin", {"email": "", "password": ""}).json()["token"]
    session.headers["Authorization"] = f"Bearer {token}"
    models = session.get(f"{page_url}/api/models", timeout=60).json()["data"]
    names = [each["id"] for each in models]
    assert "planned" in names, f"its list of models: {names}"
    meta = {"description": "weather", "manifest": {}}
    post(
        "/api/v1/tools/create", {"id": "weather", "name": "weather", "content": TOOLS, "meta": meta}
    )
    native = {"function_calling": "native"}
    own = {"id": "oslo", "base_model_id": "planned", "name": "oslo", "params": native}
    post("/api/v1/models/create", {**own, "meta": {"toolIds": ["weather"]}, "access_grants": []})
    with sync_playwright() as driver:
        browser = driver.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        window = browser.new_page()
        window.goto(f"{page_url}/?models=oslo&tools=weather", wait_until="domcontentloaded")
        news = window.get_by_role("dialog")  # what its release brings, on the first visit
        news.wait_for(timeout=60_000)
        news.get_by_role("button").last.click()
        window.locator("#chat-input").click(timeout=20_000)
        window.keyboard.type("How warm is Oslo?")
        window.keyboard.press("Enter")
        window.get_by_text('"degrees": 21').wait_for(timeout=60_000)
        print(window.locator("#response-content-container").inner_text())
        browser.close()


if __name__ == "__main__":
    main(sys.argv[1])
