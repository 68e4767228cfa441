"""langchain-openai against a server, run by a Python that has it: URL MODEL KEY."""

from __future__ import annotations

import asyncio
import sys

from langchain_openai import ChatOpenAI, OpenAI


def main(url: str, model: str, key: str) -> None:
    """Ask in every way that LangChain has and check what comes."""
    shared = {"base_url": f"{url}/v1", "api_key": key, "model": model, "temperature": 0}
    chat = ChatOpenAI(**shared, max_tokens=12, stream_usage=True)
    whole = chat.invoke("What is gravity?")
    assert whole.content and whole.usage_metadata is not None
    assert whole.usage_metadata["output_tokens"] <= 12
    print("invoke: as expected")

    pieces = list(chat.stream("What is gravity?"))
    assert "".join(str(each.content) for each in pieces) == whole.content
    assert sum((each.usage_metadata or {}).get("output_tokens", 0) for each in pieces) > 0
    print("stream: as expected")

    asked = [[("system", "You are brief."), ("user", word)] for word in ("gravity?", "light?")]
    alone = [chat.invoke(each).content for each in asked]
    assert [each.content for each in chat.batch(asked)] == alone
    assert [each.content for each in asyncio.run(gathered(chat, asked))] == alone
    print("batch and asynchronous: as expected")

    text = OpenAI(**shared, max_tokens=8)
    assert "".join(text.stream("The capital of France is")) == text.invoke(
        "The capital of France is"
    )
    print("completions: as expected")
    print("all as expected")


async def gathered(chat: ChatOpenAI, asked: list[list[tuple[str, str]]]) -> list:
    return await asyncio.gather(*(chat.ainvoke(each) for each in asked))


if __name__ == "__main__":
    main(*sys.argv[1:])
