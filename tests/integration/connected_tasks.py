"""A taskset of verifiers with a tool server of its own: the secret number is behind the tool."""

import verifiers.v1 as vf


class SecretTools(vf.Toolset[vf.ToolsetConfig, vf.State]):
    TOOL_PREFIX = "safe"

    @vf.tool
    async def opened(self, key: str) -> str:
        """What is in the safe."""
        return f"it holds {key}{key}"


class SecretData(vf.TaskData):
    answer: str


class Secret(vf.Task[SecretData]):
    @classmethod
    def toolsets(cls, config):
        return [SecretTools(vf.ToolsetConfig())]

    @vf.reward
    async def right(self, task, trace) -> float:
        return float(task.answer in (trace.last_reply or ""))


class Secrets(vf.Taskset[Secret, vf.TasksetConfig]):
    def load(self):
        yield Secret(SecretData(prompt="what is in the safe?", answer="77"), self.config.task)


class BadData(vf.TaskData):
    kind: str


class Bad(vf.Task[BadData]):
    async def setup(self, trace, runtime) -> None:
        if self.data.kind == "setup":
            raise LookupError("no such thing")

    @vf.stop
    async def enough(self, trace: vf.Trace) -> bool:
        return self.data.kind == "stop" and len(trace.nodes) > 3

    @vf.reward
    async def right(self, trace) -> float:
        if self.data.kind == "reward":
            raise ZeroDivisionError("by nothing")
        return 0.5


class Bads(vf.Taskset[Bad, vf.TasksetConfig]):
    def load(self):
        for kind in ("setup", "reward", "stop"):
            yield Bad(BadData(prompt="go", kind=kind), self.config.task)


if __name__ == "__main__":
    SecretTools.run()
