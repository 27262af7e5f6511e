"""What all ensembles share: members drawn from keys, stored, picked and followed."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from jaxopt_suite.bandits.lazy_triggers import Rows
from jaxopt_suite.bandits.linear import choose
from jaxopt_suite.bandits.ridge import RidgeState, ridge_predictions
from jaxopt_suite.problems.contextual import LinearContext, LinearDecision


def member_noise(
    key: PRNGKeyArray,
    epoch: Int[Array, ""] | int,
    members: Int[Array, " members"],
    like: Float[Array, "*blocks d"],
) -> Float[Array, "members *blocks d"]:
    """``xi_j`` of an epoch: a function of the key, the epoch and j alone."""
    epoch_key = jax.random.fold_in(key, epoch)

    def draw(member):
        key = jax.random.fold_in(epoch_key, member)
        return jax.random.normal(key, like.shape, like.dtype)

    return jax.vmap(draw)(members)


def draw_member(key: PRNGKeyArray, num_members: Int[Array, ""] | int) -> Int[Array, ""]:
    """A member, uniformly; the same one in every precision."""
    return jax.random.randint(key, (), 0, num_members, jnp.int32)


def local_members(num_members: int, axis: str | None) -> Int[Array, " members"]:
    """The members that this device keeps: all of them if no axis splits them.

    Raises:
        ValueError: the size of the axis does not divide ``num_members``.
    """
    if axis is None:
        return jnp.arange(num_members)
    num_devices = jax.lax.axis_size(axis)
    if num_members % num_devices:
        raise ValueError(
            f"num_members must be a multiple of {num_devices}, the size of the axis "
            f"{axis!r}, got {num_members}"
        )
    mine = num_members // num_devices
    return jax.lax.axis_index(axis) * mine + jnp.arange(mine)


def take_member(
    offsets: Float[Array, "members *blocks d"],
    member: Int[Array, ""],
    axis: str | None,
) -> Float[Array, "*blocks d"]:
    """The offset of one member, from whichever device keeps it."""
    if axis is None:
        return offsets[member]
    num_members = len(offsets) * jax.lax.axis_size(axis)
    mine = (local_members(num_members, axis) == member).astype(offsets.dtype)
    # A device without the member adds exact zeros.
    chosen = jnp.tensordot(mine, offsets, axes=1, precision="highest")
    return jax.lax.psum(chosen, axis)


def follow_offset(
    ridge: RidgeState,
    context: LinearContext,
    offset: Float[Array, "*blocks d"],
    member: Int[Array, ""] | int = -1,
) -> LinearDecision:
    """The best arm for ``theta + offset``; the offset's part is the bonus."""
    moved = ridge._replace(theta=ridge.theta + offset)
    scores = ridge_predictions(moved, context.features)
    bonuses = ridge_predictions(ridge._replace(theta=offset), context.features)
    return choose(context, scores, bonuses, member=jnp.asarray(member, jnp.int32))


def apply_blocks(
    matrix: Float[Array, "*blocks d d"], vectors: Float[Array, "members *blocks d"]
) -> Float[Array, "members *blocks d"]:
    """``matrix @ vector`` for each member, block by block."""
    if matrix.ndim == 2:
        return vectors @ matrix.T
    return jnp.einsum("kpq,mkq->mkp", matrix, vectors)


def perturbed_rows(
    key: PRNGKeyArray, ridge: RidgeState, rows: Rows, num_members: int, axis: str | None
) -> Float[Array, "members *blocks d"]:
    """``sum_s x_s Z^j_s`` over the rows that ``ridge`` is about to learn."""
    seen = rows.mask.astype(jnp.int32)
    counts = ridge.count + jnp.cumsum(seen) - seen

    def draw(count):
        row_key = jax.random.fold_in(key, count)
        noise = jax.random.normal(row_key, (num_members,), rows.x.dtype)
        return noise if axis is None else noise[local_members(num_members, axis)]

    noise = jax.vmap(draw)(counts)
    if rows.arm is None:
        return noise.T @ rows.x
    blocks = jax.nn.one_hot(rows.arm, len(ridge.theta), dtype=rows.x.dtype)
    return jnp.einsum("bm,bk,bp->mkp", noise, blocks, rows.x)
