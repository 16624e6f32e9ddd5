"""The section `cluster`: the resources that `launch.py render` requests from Slurm or Kubernetes.

Invariant: a run does not read these settings; they only fill in the files that start it.
"""

from typing import Any

from pydantic import Field

from protocol.settings import Section

WORD = (r"[\w.,:+/@-]*", "letters, digits, and `_.,:+/@-`, without blanks")
SHAPES: dict[str, tuple[str, str]] = {
    "shared_dir": (
        r"(/|~/)\S*|~",
        "a path from the root of the file system, or from ~, without blanks, such as /shared",
    ),
    "time_limit": (r"([0-9]+-)?[0-9]+(:[0-9]{2}){0,2}", "a time as Slurm has it: 24:00:00 or 2-00:00:00"),
    "partition": WORD,
    "controller_partition": WORD,
    "account": WORD,
    "image": (r"[\w.:/@+-]+", "the name of an image, such as registry/staleflow:latest"),
    "namespace": (
        r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?",
        "letters of a to z, digits and `-`, at most 63, the first and the last no `-`",
    ),
    "storage_class": (r"([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?)?", "letters of a to z, digits, `-` and `.`"),
}
"""By key: the pattern that the whole value has to match (ASCII), and the same in words."""


def _shaped(key: str, default: str) -> Any:
    """A field whose pattern is in the schema for editors; `rules.py` checks it when a file is read."""
    return Field(default=default, json_schema_extra={"pattern": f"^({SHAPES[key][0]})$"})


class ClusterSettings(Section):
    """Resources that `launch.py render` requests of a cluster (docs/clusters.md); no run reads them."""

    shared_dir: str = _shaped("shared_dir", "/shared")
    """Folder that all nodes mount at this path, for the run directory: checkpoints, and weights on their way
    to rollout workers."""
    port: int = Field(default=29500, ge=1024, le=65535)
    """Port of the controller, on the node where it runs."""
    trainer_nodes: int = Field(default=1, ge=1)
    """Number of nodes; `trainer.ranks` are spread over them evenly."""
    gpus_per_rank: int = Field(default=1, ge=0, le=1)
    """GPUs of one trainer rank: 1, or 0 to train on CPUs."""
    gpus_per_instance: int = Field(default=1, ge=0)
    """GPUs of one rollout worker; 0 to generate on CPUs."""
    cpus_per_rank: int = Field(default=8, ge=1)
    """CPU cores of one trainer rank."""
    cpus_per_instance: int = Field(default=8, ge=1)
    """CPU cores of one rollout worker."""
    cpus_per_agent: int = Field(default=4, ge=1)
    """CPU cores of one agent worker, with the processes and tools of its episodes."""
    memory_gb_per_agent: int = Field(default=16, ge=1)
    """Memory of one agent worker, in GiB."""
    memory_gb_per_rank: int = Field(default=64, ge=1)
    """Memory of one trainer rank, in GiB; with FSDP, checkpoints are gathered on rank 0."""
    memory_gb_per_instance: int = Field(default=64, ge=1)
    """Memory of one rollout worker, in GiB."""
    time_limit: str = _shaped("time_limit", "24:00:00")
    """Time limit of a Slurm job, as Slurm writes it. The run goes on when its jobs are submitted again."""
    partition: str = _shaped("partition", "")
    """Slurm partition of trainer and rollout; empty for the default one."""
    controller_partition: str = _shaped("controller_partition", "")
    """Slurm partition of the controller, which needs no GPU; empty for the default one."""
    account: str = _shaped("account", "")
    """Slurm account; empty for the default one."""
    image: str = _shaped("image", "staleflow:latest")
    """Container image with this project in /app, and its dependencies, for Kubernetes."""
    namespace: str = _shaped("namespace", "default")
    """Kubernetes namespace."""
    storage_class: str = _shaped("storage_class", "")
    """Kubernetes storage class that many nodes may write to (ReadWriteMany); empty for the default one."""
    storage_gb: int = Field(default=500, ge=1)
    """Size of the shared volume, in GiB."""
