"""A whole core to bytes and back, so that a run is taken up without stepping through all of its history.

Invariants: thawing gives a core that wants what the frozen one would have wanted, whatever comes; objects
that were one are one again; only classes of CLASSES are made, by creation and setting of attributes, and no
code is stored: object 0 of every image is the core's `Strategies`, which the image does not hold and `thaw`
is given. An image counts only for the release that made it (see `controller.durability.snapshots`), so it has
no other version than its shapes.
"""

import gc
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from functools import cache
from operator import attrgetter
from typing import Any, NamedTuple

import msgpack
import numpy as np
from pydantic import BaseModel

from controller.config import data as data_settings
from controller.config import evaluation as evaluation_settings
from controller.config import limits as limit_settings
from controller.config import models
from controller.core import core, postponed
from controller.core.core import Core
from controller.core.decisions.evaluation import evaluation_placement, evaluation_schedule
from controller.core.decisions.placement import (
    dispatch,
    migration,
    report_pace,
    reports,
    shared_device,
    stragglers,
)
from controller.core.decisions.supply import (
    episode_starts,
    prompt_order,
    scoring,
    supervised,
    training_groups,
)
from controller.core.decisions.supply import episodes as episode_decisions
from controller.core.decisions.training import logprob_drift, trainer_batches, training
from controller.core.decisions.versions import publication, pulls, relay_tree
from controller.core.decisions.workers import limits, membership, plausibility, reattachment
from controller.core.effects import evaluation_rounds, futile_groups, purposes
from controller.core.state import (
    accounts,
    asks,
    dispatch_queue,
    evaluation_report,
    groups,
    kept_samples,
    ledger,
    policy_versions,
    recent_failures,
    registry,
    run_state,
    source_mixture,
    told,
)
from controller.core.state.agents import episode_figures, episodes, told_agents
from controller.core.state.batches import (
    contributions,
    counting_ledger,
    disposal,
    figures,
    in_order_ledger,
    windows,
)
from controller.core.state.batches.contributions import Batch
from controller.core.state.progress import columns, trajectory
from controller.core.state.views import candidates, choices, instances
from protocol import ids, settings
from protocol.agents import settings as agent_settings
from protocol.errors import LocalError, RunError
from protocol.messages import device, from_agents, from_controller, from_workers, pieces, progress
from strategies import cost_model, fitting, instance_kinds, lengths, pacing, views
from strategies.batches import prompt_lengths
from strategies.kinds import Strategies

MODULES = (
    accounts, agent_settings, asks, candidates, choices, columns, contributions, core, counting_ledger,
    data_settings, dispatch, disposal, figures, kept_samples, trajectory,
    dispatch_queue, episode_decisions, episode_figures, episode_starts, episodes,
    evaluation_placement, evaluation_report, evaluation_rounds, evaluation_schedule, evaluation_settings,
    futile_groups, groups, in_order_ledger, instances, ledger, limit_settings, limits, logprob_drift,
    membership, migration,
    models, plausibility, policy_versions, postponed, publication, pulls, purposes, reattachment,
    recent_failures, registry,
    prompt_lengths, prompt_order, relay_tree, report_pace, reports, run_state, scoring, shared_device,
    source_mixture, stragglers, supervised, told, told_agents, trainer_batches, training, training_groups,
    device, from_agents, from_controller, from_workers, pieces, progress, ids, settings, cost_model,
    fitting, instance_kinds, lengths, pacing, views, windows,
)  # fmt: skip
CLASSES: dict[str, type] = {
    f"{module.__name__}.{name}": kind
    for module in MODULES
    for name, kind in vars(module).items()
    if isinstance(kind, type) and kind.__module__ == module.__name__
}
"""What an image may hold beside plain values and containers."""

REFERENCE, TUPLE, LIST, DICT, SET, DEQUE, COUNTER, ARRAY, NUMBER, MODEL, PACKED = range(11)
FIRST_SHAPE = 16  # tags from here on are places in the list of shapes
_NAMES = {kind: name for name, kind in CLASSES.items()}
_PLAIN = frozenset((int, float, str, bytes, bool, type(None)))
_PACKED_ALONE = frozenset((Batch,))  # immutable, large and long-lived: packed once, not with each image
_pack = msgpack.Packer(use_bin_type=True, autoreset=True).pack

Shape = tuple[str, tuple[str, ...]]  # a class, and the attributes of an object of it


class InParts(NamedTuple):
    """An image without what is packed alone, which stands beside it: images of one run share most of it."""

    skeleton: bytes
    parts: tuple[bytes, ...]


class Freezer:
    """Makes images of one core, now and then."""

    def __init__(self) -> None:
        self._shapes: dict[Shape, int] = {}
        self._plans: dict[type, tuple[int, Callable[[Any], tuple[Any, ...]]]] = {}
        self._seen: dict[int, int] = {}
        self._alone: dict[int, tuple[object, bytes]] = {}  # by id; the object is held, so ids stay true
        self._used: dict[int, int] = {}  # what the image being made has packed alone, by id; its place there
        self._is_whole = True
        self._containers: dict[type, Callable[[Any], list[Any]]] = {
            list: lambda v: [LIST, *self._values(v)],
            dict: lambda v: [DICT, *self._pairs(v)],
            set: lambda v: [SET, *sorted(v)],
            deque: lambda v: [DEQUE, v.maxlen, *self._values(v)],
            Counter: lambda v: [COUNTER, *self._pairs(v)],
            np.ndarray: lambda v: [ARRAY, v.dtype.str, list(v.shape), v.tobytes()],
        }

    def freeze(self, core: Core) -> bytes:
        """The image. Raises: LocalError naming a value that no image can hold."""
        self._is_whole = True
        return self._image(core)

    def freeze_in_parts(self, core: Core) -> InParts:
        """The same in parts, for those who keep many. Raises: LocalError as `freeze`."""
        self._is_whole = False
        skeleton = self._image(core)
        return InParts(skeleton, tuple(self._alone[key][1] for key in self._used))

    def _image(self, core: Core) -> bytes:
        self._seen, self._used = {id(core.state.strategies): 0}, {}
        core.state.disposal.clear()  # when it is freed is of no account, nor when that is counted
        core.training.figures.finish()
        for instance in core.state.registry.instances():
            if isinstance(instance.told, told.ToldInstance):  # who has looked at progress is of no account
                instance.told.columns.settle()
        root = self._value(core)
        self._alone = {key: found for key, found in self._alone.items() if key in self._used}
        return self._whole(root)

    def learn(self, thawer: "Thawer") -> None:
        """What was packed alone in the image that this thawer took last is packed already."""
        self._alone |= {id(found): (found, packed) for packed, found in thawer.alone.items()}

    def _whole(self, root: Any) -> bytes:
        """With the shapes that it is told in."""
        return _pack(([[name, list(names)] for name, names in self._shapes], root))

    def _value(self, value: Any) -> Any:
        kind = type(value)
        if kind in _PLAIN:
            return value
        if kind is tuple:
            return [TUPLE, *self._values(value)]
        if issubclass(kind, tuple):
            return self._packed_alone(value) if kind in _PACKED_ALONE else self._named(value)
        if kind is np.float64:
            return [NUMBER, float(value)]
        number = self._seen.get(id(value))
        if number is not None:
            return [REFERENCE, number]
        self._seen[id(value)] = len(self._seen)
        return self._first(value, kind)

    def _values(self, values: Iterable[Any]) -> list[Any]:
        return [value if type(value) in _PLAIN else self._value(value) for value in values]

    def _first(self, value: Any, kind: type) -> list[Any]:
        """A thing with an identity, the first time that it is met."""
        container = self._containers.get(kind)
        if container is not None:
            return container(value)
        if kind not in _NAMES:
            raise LocalError(
                f"A core holds {value!r:.200} of {kind.__module__}.{kind.__qualname__}, which no image can "
                "hold; expected plain values, or classes of MODULES in durability/core_image.py: add its "
                "module there."
            )
        if issubclass(kind, BaseModel):
            return [MODEL, _NAMES[kind], value.model_dump_json()]
        if slots := _slots(kind):
            if kind not in self._plans:
                self._plans[kind] = self._shape(kind, slots), attrgetter(*slots)
            tag, getter = self._plans[kind]
            return [tag, *self._values(getter(value))]
        return [self._shape(kind, tuple(vars(value))), *map(self._value, vars(value).values())]

    def _named(self, value: Any) -> list[Any]:
        kind = type(value)
        if kind not in _NAMES:
            raise LocalError(
                f"A core holds {value!r:.200}; add its module in controller/durability/core_image.py."
            )
        return [self._shape(kind, kind._fields), *self._values(value)]

    def _packed_alone(self, value: Any) -> list[Any]:
        key = id(value)
        if key not in self._alone:
            shapes, self._shapes = self._shapes, {}  # of its own, so that equal values are equal bytes
            self._alone[key] = value, self._whole(self._named(value))
            self._shapes = shapes
        place = self._used.setdefault(key, len(self._used))
        return [PACKED, self._alone[key][1] if self._is_whole else place]

    def _shape(self, kind: type, names: tuple[str, ...]) -> int:
        return FIRST_SHAPE + self._shapes.setdefault((_NAMES[kind], names), len(self._shapes))

    def _pairs(self, mapping: dict[Any, Any]) -> Iterator[Any]:
        for key, value in mapping.items():
            yield self._value(key)
            yield self._value(value)


def thaw(image: bytes, strategies: Strategies) -> Core:
    """The core in an image, which decides by `strategies`: those of the same configuration.

    Raises: RunError if the image is damaged, or of a release with other classes.
    """
    return Thawer(strategies).thaw(image)


class Thawer:
    """Makes cores of images of one run, one after the other, whatever moments they are of.

    Invariant: cores share nothing that ever changes: the strategies, and what is packed alone. The second is
    most of an image, and mostly that of the image before; it is kept from one to the next, and no longer.
    """

    def __init__(self, strategies: Strategies) -> None:
        self._strategies = strategies
        self.alone: dict[bytes, Any] = {}
        """What the last image had packed."""

    def thaw(self, image: bytes | InParts) -> Core:
        """The core in an image. Raises: RunError as `thaw`."""
        whole, parts = image if isinstance(image, InParts) else (image, ())
        with _without_collecting():
            try:
                shapes, root = msgpack.unpackb(
                    whole, raw=False, strict_map_key=False, max_array_len=len(whole), max_ext_len=0
                )
                made = _Thawer(shapes, self._strategies, self.alone, parts)
                found = made.value(root)
            except (
                ValueError,
                TypeError,
                KeyError,
                IndexError,
                AttributeError,
                msgpack.UnpackException,
            ) as error:
                raise RunError(
                    f"A snapshot of the core cannot be read: {type(error).__name__}: {error}. Expected one "
                    "that this release made; the journal has the same run event by event."
                ) from error
        if not isinstance(found, Core):
            raise RunError(f"A snapshot holds {type(found).__name__}; expected a Core.")
        self.alone = made.alone
        return found


@contextmanager
def _without_collecting() -> Iterator[None]:
    """Nothing becomes garbage while a core is made: looking for it took half of the time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


class _Thawer:
    """Makes the objects of one image."""

    def __init__(
        self,
        shapes: list[tuple[str, list[str]]],
        strategies: Strategies,
        made: dict[bytes, Any],
        parts: tuple[bytes, ...] = (),
    ) -> None:
        self._known, self._parts = made, parts
        self.alone: dict[bytes, Any] = {}
        self._shapes = [(CLASSES[name], tuple(names)) for name, names in shapes]
        self._seen: list[Any] = [strategies]
        for kind, names in self._shapes:
            known = getattr(kind, "_fields", None) or _slots(kind) or names
            if known != names:
                raise ValueError(f"{kind.__name__} had the attributes {names}, and has {known}")

    def value(self, item: Any) -> Any:
        if type(item) is not list:
            return item
        tag = item[0]
        if tag >= FIRST_SHAPE:
            kind, names = self._shapes[tag - FIRST_SHAPE]
            return self._object(kind, names, item)
        match tag:
            case 0:
                return self._seen[item[1]]
            case 1:
                return tuple(map(self.value, item[1:]))
            case 2:
                self._seen.append(made := [])
                made += [self.value(one) if type(one) is list else one for one in item[1:]]
                return made
            case 3 | 6:
                mapping: dict[Any, Any] = {} if tag == DICT else Counter()
                return self._fill(mapping, lambda: self._pair(mapping, item))
            case 4:
                return self._fill(set(item[1:]), lambda: None)
            case 5:
                queue: deque[Any] = deque(maxlen=item[1])
                return self._fill(queue, lambda: queue.extend(map(self.value, item[2:])))
            case 7:
                array = np.frombuffer(item[3], dtype=np.dtype(item[1])).reshape(item[2]).copy()
                return self._fill(array, lambda: None)
            case 8:
                return np.float64(item[1])
            case 9:
                return self._fill(CLASSES[item[1]].model_validate_json(item[2]), lambda: None)
            case 10:
                return self._packed_alone(item[1] if type(item[1]) is bytes else self._parts[item[1]])
        raise ValueError(f"unknown tag {tag}")

    def _packed_alone(self, packed: bytes) -> Any:
        found = self._known.get(packed)
        if found is None:
            shapes, root = msgpack.unpackb(packed, raw=False, max_array_len=len(packed))
            found = _Thawer(shapes, self._seen[0], {}).value(root)
        self.alone[packed] = found
        return found

    def _fill(self, made: Any, fill: Callable[[], None]) -> Any:
        """Number it before what is in it, which may lead back to it."""
        self._seen.append(made)
        fill()
        return made

    def _pair(self, mapping: dict[Any, Any], item: list[Any]) -> None:
        for i in range(1, len(item), 2):
            key, one = self.value(item[i]), item[i + 1]
            mapping[key] = self.value(one) if type(one) is list else one

    def _object(self, kind: type, names: tuple[str, ...], item: list[Any]) -> Any:
        value = self.value  # asked of what is no plain value alone: most are, of millions
        if issubclass(kind, tuple):
            return tuple.__new__(kind, [value(one) if type(one) is list else one for one in item[1:]])
        made = object.__new__(kind)
        self._seen.append(made)
        put = object.__setattr__
        for name, one in zip(names, item[1:], strict=True):
            put(made, name, value(one) if type(one) is list else one)
        return made


@cache
def _slots(kind: type) -> tuple[str, ...]:
    """The attributes that every object of a class has (several); () if each says by itself."""
    if "__slots__" not in vars(kind):
        return ()
    return tuple(field.name for field in fields(kind)) if is_dataclass(kind) else tuple(kind.__slots__)
