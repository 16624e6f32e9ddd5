"""Views of work and of instances, made by hand for tests of strategies."""

from strategies.views import InstanceView, WorkView

WORK = WorkView(group=0, resident_tokens=4000, min_version=0, is_fresh=True, expected_tokens=4000)


def instance(index, running=0, tokens=0, *, version=0, capacity=512, kv=10**6, **more):
    more.setdefault("expected_tokens", tokens)
    return InstanceView(index, version, running, tokens, capacity, kv, **more)
