"""A small DQN learns CartPole-v1 through replayd: a daemon, two actors, a learner and a second reader, all processes.

    actor ×2 ──► replay   prioritized, SampleToInsertRatio ──► learner ──► new priorities back to replay
       │  └────► recent   a FIFO queue of short sequences over the same chunks ──► reader
       └◄─────── weights  one item, the newest policy ◄─────── learner

Read `act` and `learn` to see how replayd is used. `scripts/demo` starts the processes, `ROLE ADDRESS SEED NUMBER` each,
plays greedy episodes with the newest weights and ends everything.
"""

from __future__ import annotations

import sys
from itertools import pairwise
from typing import Any, NoReturn

import gymnasium
import numpy as np
from numpy.typing import NDArray

import replayd_client
from replayd_client.errors import DeadlineExceededError

ACTORS = 2
SEQUENCE_LENGTH = 10
"""Steps in an item of the queue; the next one begins where it ends."""

SAMPLES_PER_INSERT = 32
MIN_SIZE = 1000
ERROR_BUFFER = 100 * SAMPLES_PER_INSERT
"""How far actors and learner may run ahead of each other: 100 transitions to either side."""
TABLES = (
    "replay,sampler=prioritized,priority_exponent=0.6,remover=fifo,max_size=50000,limiter=sample_to_insert_ratio,"
    f"samples_per_insert={SAMPLES_PER_INSERT},min_size_to_sample={MIN_SIZE},error_buffer={ERROR_BUFFER}",
    "recent,preset=queue,max_size=1000",
    "weights,sampler=uniform,remover=fifo,max_size=1",
)

DISCOUNT = 0.99
N_STEPS = 5
REWARD_SCALE = 1 - DISCOUNT
"""Makes an endless episode worth 1."""
HIDDEN = 128
BATCH_SIZE = 64
FETCHED = 4 * BATCH_SIZE
"""Transitions in one request: several updates for one round trip."""
LEARNING_RATE, LEAST_LEARNING_RATE, DECAY_UPDATES = 5e-4, 5e-5, 20_000
TARGET_RATE = 0.02
"""How far the smoothed copy of the network moves towards the trained one in each update."""
IMPORTANCE_EXPONENT = 0.5
PRIORITY_FLOOR = 1e-3
EXPLORATION_STEPS, LEAST_EXPLORATION = 6000, 0.05
"""An actor's share of random actions falls from 1 to the least in so many steps of its own."""
POLL_STEPS = 25
"""Steps between an actor's looks at the weights."""
PUBLISH_UPDATES = 32
EVALUATION_EPISODES = 20

OBSERVATION_SCALE = np.array([1 / 2.4, 1 / 2.0, 1 / 0.21, 1 / 2.0], np.float32)

Array = NDArray[Any]
Parameters = list[NDArray[np.float32]]
"""A weight and a bias for each layer."""


# --- the actor --------------------------------------------------------------------------------------------------------


def act(address: str, seed: int, actor: int) -> NoReturn:
    """Play for ever with the newest weights and some random actions, and stream every step to the daemon."""
    rng = np.random.default_rng([seed, actor])
    environment = gymnasium.make("CartPole-v1")
    environment.reset(seed=int(rng.integers(1 << 31)))
    client = replayd_client.Client(address)
    parameters: Parameters | None = None
    with client.trajectory_writer(num_keep_alive_refs=max(N_STEPS + 1, SEQUENCE_LENGTH)) as writer:
        recorder = Recorder(writer, actor)
        while True:
            observation, _ = environment.reset()
            fallen = truncated = False
            while not (fallen or truncated):
                if recorder.rows % POLL_STEPS == POLL_STEPS - 1:
                    parameters, _ = newest_weights(client)
                exploration = max(LEAST_EXPLORATION, 1 - recorder.rows / EXPLORATION_STEPS)
                if parameters is None or rng.random() < exploration:
                    action = int(rng.integers(2))
                else:
                    action = int(q_values(parameters, observation).argmax())
                next_observation, reward, fallen, truncated, _ = environment.step(action)
                recorder.record(observation, action, float(reward), is_terminal=False)
                observation = next_observation
            # The time limit cuts an episode short but ends nothing: its last state keeps its value. A fallen pole stays
            # down: the terminal state lasts for as many steps as a transition spans, so that the last ones reach it.
            for _ in range(N_STEPS if fallen else 1):
                recorder.record(observation, 0, 0.0, is_terminal=fallen)
            recorder.end_episode()


class Recorder:
    """Writes steps once and shows them twice: as n-step transitions in `replay` and as sequences in `recent`."""

    def __init__(self, writer: replayd_client.TrajectoryWriter, actor: int) -> None:
        self.rows = 0
        """Recorded so far, in all episodes."""
        self._writer = writer
        self._actor = actor

    def record(self, observation: Array, action: int, reward: float, is_terminal: bool) -> None:
        self._writer.append(
            {
                "observation": observation,
                "action": np.int8(action),
                "reward": np.float32(reward),
                "is_terminal": is_terminal,
                "actor": np.int8(self._actor),
                "row": np.int64(self.rows),
            }
        )
        self.rows += 1
        history = self._writer.history
        if self._writer.episode_steps > N_STEPS:
            transition = {
                "observation": history["observation"][-N_STEPS - 1],
                "action": history["action"][-N_STEPS - 1],
                "rewards": history["reward"][-N_STEPS - 1 : -1],
                "next_observation": history["observation"][-1],
                "is_terminal": history["is_terminal"][-1],
            }
            self._writer.create_item(table="replay", priority=1.0, trajectory=transition)
        if self.rows % SEQUENCE_LENGTH == 0:
            sequence = {name: column[-SEQUENCE_LENGTH:] for name, column in history.items()}
            self._writer.create_item(table="recent", priority=1.0, trajectory=sequence)

    def end_episode(self) -> None:
        # Sequences go on from one episode to the next, so the history is kept.
        self._writer.end_episode(clear_buffers=False)


# --- the learner ------------------------------------------------------------------------------------------------------


def learn(address: str, seed: int, _number: int) -> NoReturn:
    """Train for ever on what `replay` draws, send the new priorities back, and publish the smoothed weights."""
    client = replayd_client.Client(address)
    network = DoubleDQN(np.random.default_rng(seed))
    while True:
        batch = client.sample_batch("replay", FETCHED)
        # Frequent items are drawn often, so each counts less: (N · P)^−β, the most rare one counting 1.
        importance = (batch.info.table_size * batch.info.probability) ** -IMPORTANCE_EXPONENT
        importance /= importance.max()
        errors = np.empty(len(importance))
        for start in range(0, len(importance), BATCH_SIZE):
            part = slice(start, start + BATCH_SIZE)
            errors[part] = network.update({name: column[part] for name, column in batch.data.items()}, importance[part])
        client.mutate_priorities("replay", updates=(batch.info.key, np.abs(errors) + PRIORITY_FLOOR))
        if network.updates % PUBLISH_UPDATES == 0:
            policy = {"parameters": network.smoothed, "updates": np.int64(network.updates)}
            client.insert(policy, priorities={"weights": 1.0})


class DoubleDQN:
    """A network of two hidden layers, trained by double Q-learning (van Hasselt 2015) with n-step returns and Adam.

    The smoothed copy, which trails the trained network, values the next states and is the policy that is published:
    it forgets less from one update to the next.
    """

    def __init__(self, rng: np.random.Generator) -> None:
        sizes = (len(OBSERVATION_SCALE), HIDDEN, HIDDEN, 2)
        self.trained: Parameters = []
        for inputs, outputs in pairwise(sizes):
            weights = rng.standard_normal((inputs, outputs)) * np.sqrt(2 / inputs)
            self.trained += [weights.astype(np.float32), np.zeros(outputs, np.float32)]
        # Begin with small differences between actions and the belief that the pole never falls: then only falls have to
        # be learned, and they spread from the states where they happen.
        self.trained[-2] *= 0.1
        self.trained[-1] += 1.0
        self.smoothed = [parameter.copy() for parameter in self.trained]
        self.updates = 0
        self._means = [np.zeros_like(parameter) for parameter in self.trained]
        self._squares = [np.zeros_like(parameter) for parameter in self.trained]

    def update(self, transitions: dict[str, Array], importance: Array) -> Array:
        """One step of gradient descent on B transitions; returns their B errors from before it."""
        rows = np.arange(len(importance))
        rewards = transitions["rewards"] @ (REWARD_SCALE * DISCOUNT ** np.arange(N_STEPS))
        following = transitions["next_observation"]
        best_actions = q_values(self.trained, following).argmax(axis=1)
        following_values = q_values(self.smoothed, following)[rows, best_actions]
        wanted = rewards + DISCOUNT**N_STEPS * np.where(transitions["is_terminal"], 0, following_values)

        values, activations = forward(self.trained, transitions["observation"])
        errors: Array = values[rows, transitions["action"]] - wanted
        gradient = np.zeros_like(values)
        gradient[rows, transitions["action"]] = importance * np.clip(errors, -1, 1) / len(rows)
        self._descend(backward(self.trained, activations, gradient))
        return errors

    def _descend(self, gradients: Parameters) -> None:
        self.updates += 1
        norm = np.sqrt(sum(float(np.square(gradient).sum()) for gradient in gradients))
        rate = max(LEAST_LEARNING_RATE, LEARNING_RATE * (1 - self.updates / DECAY_UPDATES))
        rate *= np.sqrt(1 - 0.999**self.updates) / (1 - 0.9**self.updates)
        for parameter, smoothed, mean, square, gradient in zip(
            self.trained, self.smoothed, self._means, self._squares, gradients, strict=True
        ):
            gradient *= min(1.0, 1.0 / (norm + 1e-9))
            mean += 0.1 * (gradient - mean)
            square += 0.001 * (np.square(gradient) - square)
            parameter -= rate * mean / (np.sqrt(square) + 1e-8)
            smoothed += TARGET_RATE * (parameter - smoothed)


def q_values(parameters: Parameters, observations: Array) -> Array:
    """Values [B, 2] of both actions in B states, or [2] in one."""
    values, _ = forward(parameters, observations)
    return values


def forward(parameters: Parameters, observations: Array) -> tuple[Array, list[Array]]:
    """The values, and what each layer was given."""
    inputs = [observations * OBSERVATION_SCALE]
    for weights, bias in zip(parameters[:-2:2], parameters[1:-2:2], strict=True):
        inputs.append(np.maximum(inputs[-1] @ weights + bias, 0))
    return inputs[-1] @ parameters[-2] + parameters[-1], inputs


def backward(parameters: Parameters, inputs: list[Array], gradient: Array) -> Parameters:
    """The gradient of each parameter, from that of the values."""
    gradients: Parameters = []
    for weights, given in zip(parameters[-2::-2], reversed(inputs), strict=True):
        gradients = [given.T @ gradient, gradient.sum(axis=0), *gradients]
        gradient = (gradient @ weights.T) * (given > 0)
    return gradients


# --- the second reader ------------------------------------------------------------------------------------------------


def read(address: str, _seed: int, _number: int) -> NoReturn:
    """Drain the queue for ever, and fail unless each actor's steps arrive in order, none lost and none twice."""
    client = replayd_client.Client(address)
    next_row = [0] * ACTORS
    while True:
        batch = client.sample_batch("recent", 100, min_n=1)
        for actor in range(ACTORS):
            rows = batch.data["row"][batch.data["actor"] == actor]
            expected = next_row[actor] + np.arange(len(rows))
            if not np.array_equal(rows, expected):
                raise AssertionError(f"actor {actor}: the queue gave rows {rows} instead of {expected}")
            next_row[actor] += len(rows)


# --- evaluation -------------------------------------------------------------------------------------------------------


def newest_weights(client: replayd_client.Client) -> tuple[Parameters | None, int]:
    """What the learner published last and the number of updates behind it; None and 0 if there is nothing yet.

    Does not wait, not even to connect: the client has to have done something before.
    """
    try:
        policy = client.sample_batch("weights", 1, timeout_ms=0).data
    except DeadlineExceededError:
        return None, 0
    return [parameter[0, 0] for parameter in policy["parameters"]], int(policy["updates"][0, 0])


class Evaluator:
    """Plays greedy episodes side by side, in environments and with seeds that no actor has."""

    def __init__(self, seed: int) -> None:
        self._environments = [gymnasium.make("CartPole-v1") for _ in range(EVALUATION_EPISODES)]
        self._seeds = np.random.default_rng([seed, EVALUATION_EPISODES])

    def mean_return(self, parameters: Parameters) -> float:
        """Of one new episode in each environment, all with these weights."""
        seeds = self._seeds.integers(1 << 31, size=EVALUATION_EPISODES).tolist()
        observations = np.stack([e.reset(seed=seed)[0] for e, seed in zip(self._environments, seeds, strict=True)])
        returns = np.zeros(EVALUATION_EPISODES)
        playing = np.ones(EVALUATION_EPISODES, bool)
        while playing.any():
            actions = q_values(parameters, observations).argmax(axis=1)
            for i in np.flatnonzero(playing):
                observations[i], reward, fallen, truncated, _ = self._environments[i].step(int(actions[i]))
                returns[i] += float(reward)
                playing[i] = not (fallen or truncated)
        return float(returns.mean())


ROLES = {"actor": act, "learner": learn, "reader": read}

if __name__ == "__main__":
    _, role, address, seed, number = sys.argv
    ROLES[role](address, int(seed), int(number))
