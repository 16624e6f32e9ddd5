from concurrent.futures import Future
from multiprocessing.process import BaseProcess
from queue import Queue
from threading import Event
from typing import Any

from vllm.v1.engine import EngineCoreOutputs, EngineCoreRequestType

class CoreEngineProcManager:
    processes: list[BaseProcess]
    manager_stopped: Event

class BackgroundResources:
    engine_manager: CoreEngineProcManager | None
    engine_dead: bool

class SyncMPClient:
    resources: BackgroundResources
    outputs_queue: Queue[EngineCoreOutputs | Exception]
    utility_results: dict[int, Future[Any]]
    def _send_input(self, request_type: EngineCoreRequestType, request: Any) -> None: ...
