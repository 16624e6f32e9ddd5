"""`staleness.strategy`: named sets of rules, ours and those of other systems.

Invariants: a preset only sets values of other keys of `staleness`; a key that is written out takes
precedence. A preset whose ledger is not strict does not promise the bound: its violations are counted and
shown. Source: AReaL (arXiv 2505.24298), veRL (fully asynchronous trainer) and ROLL Flash: their admission and
consumption as implemented in DryRun-RL, the simulator of StaleFlow's authors; prime-rl and NeMo-RL: their
code of August 2026 (a dispatcher that fills the engines and drops; trajectories for a target version, in
order). The gate on the lead of prime-rl's dispatcher and its limit of rollouts in flight are left out.
"""

STRICT = {"ledger": "deadlines"}
PLAIN = {"pace": 0.0, "adaptive_mu": False, "urgency": 0.0}  # what the other systems do not have
PRESETS: dict[str, dict[str, object]] = {
    "staleflow": {
        **STRICT,
        "routing": "marginal_gain",
        "synchronization": "gain",
        "migration": "gap",
        "pace": 0.0,
        "adaptive_mu": True,
        "urgency": 5.0,
    },
    # the protocol alone, as released: least requests, pull at once, whatever the window admits
    "greedy": {
        **STRICT,
        "in_flight_batches": "all",
        "routing": "least_requests",
        "synchronization": "greedy",
        "migration": "none",
        **PLAIN,
    },
    "sync": {
        **STRICT,
        "max_staleness": 0,
        "admission": "one_batch",
        "routing": "least_requests",
        "synchronization": "greedy",
        "migration": "none",
        **PLAIN,
    },
    # one batch is generated while the one before is trained; weights change between two batches
    "one_step": {
        **STRICT,
        "max_staleness": 1,
        "admission": "one_batch",
        "routing": "least_requests",
        "synchronization": "greedy",
        "migration": "none",
        **PLAIN,
        "partial_rollout": False,
    },
    "areal": {
        "ledger": "arrival",
        "admission": "areal",
        "routing": "round_robin",
        "synchronization": "greedy",
        "migration": "none",
        **PLAIN,
    },
    "roll_flash": {
        "ledger": "floor",
        "admission": "roll_flash",
        "routing": "least_requests",
        "synchronization": "greedy",
        "migration": "none",
        **PLAIN,
    },
    # veRL's later trainer (V1): `greedy` where it waits for groups at the limit, `roll_flash` where it drops
    "nemo_rl": {
        "ledger": "in_order",
        "in_flight_batches": "all",
        "routing": "round_robin",
        "synchronization": "greedy",
        "migration": "none",
        **PLAIN,
    },
    "prime_rl": {
        "ledger": "floor",
        "admission": "prime_rl",
        "routing": "least_requests",
        "synchronization": "greedy",
        "migration": "none",
        **PLAIN,
    },
    "verl_async": {
        "ledger": "completion",
        "admission": "verl_async",
        "routing": "least_requests",
        "synchronization": "every_few",
        "migration": "none",
        **PLAIN,
    },
}
FIXED_BOUND = {"sync": 0, "one_step": 1}
"""Presets that have a fixed bound."""


def with_preset(values: dict[str, object]) -> dict[str, object]:
    """The keys of `staleness` as written, completed from the preset that they name."""
    name = values.get("strategy", "staleflow")
    return {**PRESETS.get(name if isinstance(name, str) else "", {}), **values}
