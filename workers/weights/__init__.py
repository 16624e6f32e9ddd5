"""Policy versions on their way from the trainer to the engines; docs/weights.md describes the whole path.

| module | purpose |
|---|---|
| manifest | the file format: a safetensors file whose header carries a checksum of each chunk |
| store | the versions in one folder: written under a temporary name, sealed, retired, storage reused |
| version_file | a whole version, open for reading its chunks |
| tensors, copying | torch views of a version: a trainer's rank writes them, an engine reads them |
| channel | the messages between hosts |
| deltas | chunks as differences from an older version |
| fetch, exchange | a process per worker that pulls from other hosts and serves them |
| exchange_process | the worker's handle on that process |
| address | the address at which other hosts reach that process |

Only `tensors` and `copying` import torch. The trainer's side is workers/trainer/publishing.
"""
