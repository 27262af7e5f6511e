"""Linear bandits of other libraries, disjoint models, one round at a time.

All play the same table: contexts, and what each arm would pay in each round. They come
with the extra ``[bench]``; one that is missing is skipped, and said to be.
"""

import importlib
import importlib.util
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int

ALPHA, SCALE, LAM = 1.0, 0.3, 1.0
UCB, THOMPSON, FIRST_ORDER = "LinUCB", "Thompson sampling", "first-order"


class Table(NamedTuple):
    """A bandit written out: row t is round t."""

    contexts: Float[np.ndarray, "rounds p"]
    rewards: Float[np.ndarray, "rounds num_arms"]


class Player(NamedTuple):
    """A peer that plays: ``select(context) -> arm``, ``learn(context, arm, reward)``.

    Attributes:
        select: chooses.
        learn: is told what the choice paid.
        see: turns a context's numbers into what the peer takes.
    """

    select: Callable[[Any], int]
    learn: Callable[[Any, int, float], None]
    see: Callable[[np.ndarray], Any]


class Peer(NamedTuple):
    """A library's policy.

    Attributes:
        package: to import.
        kind: of policy.
        make: ``make(p, num_arms)`` gives a fresh :class:`Player`.
        ready: whether contexts are turned into what it takes before the clock starts.
    """

    package: str
    kind: str
    make: Callable[[int, int], Player]
    ready: bool = False

    @property
    def name(self) -> str:
        """How it is called in the report."""
        given = ", contexts given as its own text" if self.ready else ""
        return f"{self.package} {self.kind}{given}"


def table(p: int, num_arms: int, rounds: int, *, noise: float = SCALE) -> Table:
    """Contexts and parameters uniform on the sphere, Gaussian noise."""
    generator = np.random.default_rng(p)
    contexts, parameters = (
        x / np.linalg.norm(x, axis=1, keepdims=True)
        for x in (
            generator.standard_normal((rounds, p), np.float32),
            generator.standard_normal((num_arms, p), np.float32),
        )
    )
    shift = noise * generator.standard_normal((rounds, num_arms), np.float32)
    return Table(contexts, contexts @ parameters.T + shift)


def play(peer: Peer, world: Table, rounds: int) -> Callable[[], Int[np.ndarray, " n"]]:
    """A fresh player on the first rounds of a table; the call returns its arms."""
    player = peer.make(world.contexts.shape[1], world.rewards.shape[1])
    contexts: Any = world.contexts[:rounds]
    if peer.ready:
        contexts = [player.see(context) for context in contexts]
    see = (lambda context: context) if peer.ready else player.see
    rewards = world.rewards[:rounds].tolist()

    def call():
        arms = np.empty(rounds, int)
        for t, (shown, row) in enumerate(zip(contexts, rewards, strict=True)):
            context = see(shown)
            arm = arms[t] = player.select(context)
            player.learn(context, arm, row[arm])
        return arms

    return call


def rounds_in(peer: Peer, world: Table, seconds: float) -> int:
    """How many rounds a peer plays in about so much CPU time; 40 at least."""
    few = min(40, len(world.contexts))
    play(peer, world, few)()
    call = play(peer, world, few)
    start = time.process_time()
    call()
    used = time.process_time() - start
    return int(np.clip(seconds / used * few, few, len(world.contexts)))


def installed() -> tuple[list[Peer], list[str]]:
    """The peers that are there, and the packages that are not."""
    packages = dict.fromkeys(peer.package for peer in PEERS)
    missing = [x for x in packages if importlib.util.find_spec(x) is None]
    return [peer for peer in PEERS if peer.package not in missing], missing


def _mabwiser(policy: str) -> Callable[[int, int], Player]:
    def make(p, num_arms):
        del p
        mab = importlib.import_module("mabwiser.mab")
        laws = mab.LearningPolicy
        law = (
            laws.LinUCB(alpha=ALPHA, l2_lambda=LAM)
            if policy == UCB
            else laws.LinTS(alpha=SCALE, l2_lambda=LAM)
        )
        bandit, begun = mab.MAB(list(range(num_arms)), law), False

        def select(context):
            return bandit.predict(context) if begun else 0

        def learn(context, arm, reward):
            nonlocal begun
            (bandit.partial_fit if begun else bandit.fit)([arm], [reward], context)
            begun = True

        return Player(select, learn, _row)

    return make


def _contextualbandits(policy: str) -> Callable[[int, int], Player]:
    def make(p, num_arms):
        del p
        online = importlib.import_module("contextualbandits.online")
        # Of its ways to solve and to sample, those that are fastest for single rows.
        common = {"lambda_": LAM, "fit_intercept": False, "use_float": True}
        if policy == UCB:
            bandit = online.LinUCB(num_arms, alpha=ALPHA, method="sm", **common)
        else:
            law = {"v_sq": SCALE**2, "sample_from": "ci", "method": "chol"}
            bandit = online.LinTS(num_arms, **law, **common)
        begun = False

        def select(context):
            return int(bandit.predict(context)[0]) if begun else 0

        def learn(context, arm, reward):
            nonlocal begun
            bandit.partial_fit(context, np.array([arm]), np.array([reward]))
            begun = True

        return Player(select, learn, _row)

    return make


def _coba(policy: str) -> Callable[[int, int], Player]:
    def make(p, num_arms):
        del p
        learners = importlib.import_module("coba.learners")
        features = ["ax"]
        learner = (
            learners.LinUCBLearner(ALPHA, features)
            if policy == UCB
            else learners.LinTSLearner(SCALE, features)
        )
        arms = [tuple(row) for row in np.eye(num_arms, dtype=int).tolist()]

        def select(context):
            return arms.index(learner.predict(context, arms)[0])

        def learn(context, arm, reward):
            learner.learn(context, arms[arm], reward, 1.0)

        return Player(select, learn, np.ndarray.tolist)

    return make


def _bayesianbandits(p: int, num_arms: int) -> Player:
    del p
    peer = importlib.import_module("bayesianbandits")
    precision = 1 / SCALE**2
    arms = [
        peer.Arm(a, learner=peer.NormalRegressor(LAM * precision, precision))
        for a in range(num_arms)
    ]
    agent = peer.ContextualAgent(arms, peer.ThompsonSampling(), random_seed=0)

    def learn(context, arm, reward):
        # The agent remembers the arm that it pulled last.
        del arm
        agent.update(context, np.array([reward]))

    return Player(lambda context: agent.pull(context)[0], learn, _row)


def _vowpalwabbit(p: int, num_arms: int) -> Player:
    pyvw = importlib.import_module("vowpalwabbit.pyvw")
    bandit = pyvw.Workspace(f"--cb_explore {num_arms} --epsilon 0.1 --quiet")
    generator, chances = np.random.default_rng(0), [1.0]
    line = "| " + " ".join(f"{i}:%.6g" for i in range(p))

    def see(context):
        return line % tuple(context.tolist())

    def select(context):
        chances[:] = bandit.predict(context)
        draw = generator.random() * sum(chances)
        for arm, chance in enumerate(chances):
            draw -= chance
            if draw < 0:
                return arm
        return num_arms - 1

    def learn(context, arm, reward):
        bandit.learn(f"{arm + 1}:{-reward:.6g}:{chances[arm]:.6g} {context}")

    return Player(select, learn, see)


def _row(context: np.ndarray) -> Float[np.ndarray, "1 p"]:
    return context[None]


PEERS = (
    Peer("mabwiser", UCB, _mabwiser(UCB)),
    Peer("mabwiser", THOMPSON, _mabwiser(THOMPSON)),
    Peer("bayesianbandits", THOMPSON, _bayesianbandits),
    Peer("contextualbandits", UCB, _contextualbandits(UCB)),
    Peer("contextualbandits", THOMPSON, _contextualbandits(THOMPSON)),
    Peer("coba", UCB, _coba(UCB)),
    Peer("coba", THOMPSON, _coba(THOMPSON)),
    Peer("vowpalwabbit", FIRST_ORDER, _vowpalwabbit),
    Peer("vowpalwabbit", FIRST_ORDER, _vowpalwabbit, ready=True),
)
