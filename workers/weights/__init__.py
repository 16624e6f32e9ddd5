"""Policy versions on their way from the trainer to the engines; docs/weights.md tells it as a story.

| module | what |
|---|---|
| manifest | the file format: a safetensors file whose header carries a checksum of each chunk |
| store | the versions in one folder: written aside, sealed, retired, their storage used again |
| tensors | torch views of a version: what a trainer's rank writes, what an engine reads |
| publisher | the trainer's side, on every rank |
| channel | the words between hosts |
| fetch, exchange | a process of its own per worker that pulls from other hosts and serves them |
| exchange_process | the worker's handle on that process |
| address | where that process is reached from other hosts |

Only `tensors` and `publisher` import torch.
"""
