"""Run an ACP agent under Ostler's supervision, without HTTP: python without_http.py [AGENT]"""

import sys

import trio

import supervisor


async def main(agent: str = "demo") -> None:
    async with supervisor.open("~/.ostler-example") as ostler:
        conversation = await ostler.start(agent, working_dir=".")
        await conversation.ask("What is a nursery?")
        print(conversation.record.execution_status, await conversation.final_response())


if __name__ == "__main__":
    trio.run(main, *sys.argv[1:2])
