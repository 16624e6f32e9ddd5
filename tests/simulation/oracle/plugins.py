"""Strategies of a user's own, by import path: pure, within the contract, and of no sense."""


def route_to_any(work, instances, settings):
    """The last that has room, but for every third group the first."""
    fit = [
        i
        for i in instances
        if i.running < i.capacity and i.resident_tokens + work.resident_tokens <= i.kv_tokens
    ]
    return None if not fit else fit[0].id if work.group % 3 == 0 else fit[-1].id


def route_to_idle(work, instances, settings):
    """Only to one where nothing runs."""
    idle = [i.id for i in instances if not i.running and work.resident_tokens <= i.kv_tokens]
    return idle[0] if idle else None


def never_pull(instances, settings):
    """Nobody moves who is not made to."""
    return []


def pull_every_other(instances, settings):
    """Those of even number."""
    return [i.id for i in instances if i.id % 2 == 0]


def admit_few(view, batches):
    """A batch and one group, in all."""
    return view.batch_groups + 1 - view.generating - view.occupied


def move_the_newest(instances, running, settings):
    """One trajectory off the fullest instance, whatever that costs."""
    if len(instances) < 2:
        return []
    fullest = max(instances, key=lambda i: (i.running, i.id))
    return [t.id for t in running[fullest.id]][-1:] if fullest.running > 1 else []


def keep_half(rewards):
    """Those with at least one success."""
    return max(rewards) > 0
