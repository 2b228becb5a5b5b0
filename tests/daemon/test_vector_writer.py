"""The vectorised writer against a real server, fed by Gymnasium's vectorised environments in each of their modes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import replayd
from replayd_client import errors
from replayd_client.vector_items import VectorItem
from tests.daemon.embedded import fifo, size, uniform, until

gymnasium = pytest.importorskip("gymnasium")

pytest_plugins = ["tests.daemon.embedded_fixtures"]


class Clock(gymnasium.Env):  # type: ignore[misc, name-defined]
    """Observes (environment, episode, step); an episode of environment i has 2 + i steps."""

    observation_space = gymnasium.spaces.Box(-1, 1 << 20, (3,), np.int64)
    action_space = gymnasium.spaces.Discrete(1 << 20)

    def __init__(self, number: int) -> None:
        self.number, self.episode, self.time = number, -1, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.episode, self.time = self.episode + 1, 0
        return self._observed(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.time += 1
        return self._observed(), float(self.time), self.time == 2 + self.number, False, {}

    def _observed(self) -> Any:
        return np.array([self.number, self.episode, self.time])


def environments(count: int, mode: str) -> Any:
    return gymnasium.vector.SyncVectorEnv(
        [lambda number=number: Clock(number) for number in range(count)],
        autoreset_mode=gymnasium.vector.AutoresetMode[mode],
    )


def roll(envs: Any, writer: Any, steps: int) -> None:
    """The loop that a user would write; the action is what the environment's observation says of the time."""
    obs, _ = envs.reset()
    for _ in range(steps):
        action = obs[:, 2].copy()
        next_obs, reward, terminated, truncated, info = envs.step(action)
        ends = terminated | truncated
        final: Any = None
        if writer.autoreset_mode == "same_step" and ends.any():
            final = {"obs": info["final_obs"]}
        elif writer.autoreset_mode == "disabled":
            final = {"obs": next_obs.copy()}
        step = {"obs": obs, "action": action, "reward": reward, "terminated": terminated}
        writer.append(step, ends, final=final)
        obs = next_obs
        if writer.autoreset_mode == "disabled" and ends.any():
            obs, _ = envs.reset(options={"reset_mask": ends})


@pytest.mark.parametrize("mode", ["NEXT_STEP", "SAME_STEP", "DISABLED"])
def test_every_transition_is_there_once_and_none_spans_episodes(serve: Any, client_of: Any, mode: str) -> None:
    client = client_of(serve(uniform("t", 100_000)))
    envs = environments(3, mode)
    items = [VectorItem("t", 2)]
    with client.vector_writer(3, items, observations=["obs"], autoreset_mode=envs.metadata["autoreset_mode"]) as writer:
        roll(envs, writer, 60)
    seen = set()
    for _ in range(40):
        batch = client.sample_batch("t", 200)
        obs, action = batch.data["obs"], batch.data["action"][:, 0]
        assert (obs[:, 0, :2] == obs[:, 1, :2]).all(), "a transition spans episodes"
        assert (obs[:, 1, 2] == obs[:, 0, 2] + 1).all(), "a step is missing"
        assert (action == obs[:, 0, 2]).all(), "an action that was ignored is shown"
        assert (batch.data["reward"][:, 0] == action + 1).all()
        assert (batch.data["terminated"][:, 0] == (obs[:, 1, 2] == 2 + obs[:, 0, 0])).all()
        seen |= set(map(tuple, obs[:, 0].tolist()))
    # Under NEXT_STEP one step in each episode is a reset; the last transitions need one step more.
    for env in range(3):
        last = max(episode for number, episode, _ in seen if number == env)
        times = {(episode, time) for number, episode, time in seen if number == env and episode < last}
        assert times == {(episode, time) for episode in range(last) for time in range(2 + env)}
    assert size(client, "t") == len(seen)


def test_items_leave_by_themselves_and_errors_are_told(serve: Any, client_of: Any) -> None:
    client = client_of(serve(fifo("t")))
    writer = client.vector_writer(2, [VectorItem("t", 1)], observations=[])
    writer.append({"x": np.zeros(2)}, np.zeros(2, np.bool_))
    until(lambda: size(client, "t") == 2)
    with pytest.raises(errors.DataError, match="column 'x': expected float64"):
        writer.append({"x": np.zeros(3)}, np.zeros(2, np.bool_))
    with pytest.raises(errors.DataError, match="ends"):
        writer.append({"x": np.zeros(2)}, [0, 1])
    with pytest.raises(errors.DataError, match="final"):
        writer.append({"x": np.zeros(2)}, np.zeros(2, np.bool_), final={"x": np.zeros(2)})
    writer.close()
    with pytest.raises(errors.ClosedError):
        writer.append({"x": np.zeros(2)}, np.zeros(2, np.bool_))


def test_what_does_not_fit_a_table_is_refused_at_the_first_step(serve: Any, client_of: Any) -> None:
    signature = {"x": replayd.TensorSpec((2,), np.float64)}
    client = client_of(serve(uniform("t", signature=signature)))
    good = {"x": np.zeros(2)}
    for item, error in ((VectorItem("t", 3), errors.SignatureError), (VectorItem("u", 2), errors.UnknownTableError)):
        with pytest.raises(error):
            client.vector_writer(2, [item], observations=[]).append(good, np.zeros(2, np.bool_))
    with pytest.raises(errors.DataError, match="y"):
        client.vector_writer(2, [VectorItem("t", 2)], observations=["y"]).append(good, np.zeros(2, np.bool_))
    with client.vector_writer(2, [VectorItem("t", 2)], observations=["x"]) as writer:
        for _ in range(3):
            writer.append(good, np.zeros(2, np.bool_))
    assert size(client, "t") == 4


def test_a_full_table_makes_the_call_wait_and_the_error_tells_why(serve: Any, client_of: Any) -> None:
    client = client_of(serve(replayd.Table.queue("q", 10)))
    writer = client.vector_writer(4, [VectorItem("q", 1)], observations=[], timeout_ms=300)
    for number in range(5):
        writer.append({"x": np.full(4, number)}, np.zeros(4, np.bool_))
    with pytest.raises(errors.DeadlineExceededError, match="max_diff") as late:
        writer.flush(timeout_ms=100)
    assert late.value.detail["unacknowledged_items"] > 0
    got = [int(sample.data[0][0]) for sample in client.sample("q", 20, emit_timesteps=False)]
    assert sorted(got) == sorted(list(range(5)) * 4)
    writer.flush()
    assert writer.open_items == 0
    writer.close()


def test_ending_all_episodes_makes_their_short_windows(serve: Any, client_of: Any) -> None:
    client = client_of(serve(fifo("t", max_times_sampled=1)))
    with client.vector_writer(2, [VectorItem("t", 3, shorten=True)], observations=[]) as writer:
        for number in range(4):
            writer.append({"x": np.array([number, 10 + number])}, np.zeros(2, np.bool_))
        writer.end_episodes()
        shown = [sample.data[0].tolist() for sample in client.sample("t", 8, emit_timesteps=False)]
    assert sorted(shown) == sorted([[0, 1, 2], [1, 2, 3], [2, 3], [3], [10, 11, 12], [11, 12, 13], [12, 13], [13]])


@pytest.mark.parametrize("change", [{"num_envs": 0}, {"items": []}, {"autoreset_mode": "never"}, {"chunk_length": 0}])
def test_a_vector_writer_that_makes_no_sense_is_refused(serve: Any, client_of: Any, change: dict[str, Any]) -> None:
    client = client_of(serve(fifo("t")))
    with pytest.raises(ValueError):
        client.vector_writer(**{"num_envs": 2, "items": [VectorItem("t", 2)], "observations": [], **change})
