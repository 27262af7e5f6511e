r"""Bounds and exact moments of the median of means, and how to choose its groups.

Host-side float64. A batch of :math:`B = n k` samples is split into :math:`k = 2m + 1`
groups of :math:`n`. The noise is :math:`S + A`: :math:`S` symmetric with
:math:`E|S|^\beta \le s_\beta^\beta`, :math:`\beta \in (0, 1]`, and :math:`A` centred
with :math:`E|A|^\alpha \le s_\alpha^\alpha`, :math:`\alpha \in (1, 2]`. A mixture that
takes :math:`A` with probability :math:`\rho` is covered with :math:`(1-\rho)^{1/\beta}
s_\beta` and :math:`\rho^{1/\alpha} s_\alpha`.

Source: Puchkin, Gorbunov, Kutuzov, Gasnikov, "Breaking the Heavy-Tailed Noise Barrier
in Stochastic Optimization Problems" (2023), arXiv 2311.04161, for the setting; the
constants follow from the tail of an order statistic and the inequality of von Bahr and
Esseen.
"""

import math

import numpy as np

from jaxopt_suite.core.checks import check_integer, check_interval


def default_num_groups(beta: float) -> int:
    r"""The group count that keeps the factor of the bound at most 2.

    .. math:: k = 2 \lceil 4 / \beta \rceil - 1

    Raises:
        ValueError: ``beta`` is outside (0, 1].

    Example:
        >>> default_num_groups(1.0), default_num_groups(0.5)
        (7, 15)
    """
    check_interval("beta", beta, 0.0, 1.0, closed="(]")
    # 4 / beta may land an ulp above an integer, which is no reason for another group.
    return 2 * math.ceil(4.0 / beta * (1 - 1e-12)) - 1


def _check_laws(beta, s_beta, alpha, s_alpha):
    if beta is None and alpha is None:
        raise ValueError("give beta= (symmetric part), alpha= (centred part), or both")
    if beta is not None:
        check_interval("beta", beta, 0.0, 1.0, closed="(]")
    if alpha is not None:
        check_interval("alpha", alpha, 1.0, 2.0, closed="(]")
    check_interval("s_beta", s_beta, 0.0)
    check_interval("s_alpha", s_alpha, 0.0)


def _mean_scale(q: float, scale: float, group_size: int) -> float:
    """c_q(n), the scale of the q-th moment of a group mean."""
    rate = scale * group_size ** ((1 - q) / q)
    return rate if q <= 1 else 2 ** (1 / q) * rate


def _check_exists(name: str, q: float, m: int) -> None:
    if q * (m + 1) > 2:
        return
    least = 2 * math.floor(2 / q) + 1
    raise ValueError(
        f"num_groups must be >= {least} for a second moment with {name} = {q}, "
        f"got {2 * m + 1}"
    )


def second_moment_bound(
    num_groups: int,
    group_size: int,
    *,
    beta: float | None = None,
    s_beta: float = 0.0,
    alpha: float | None = None,
    s_alpha: float = 0.0,
) -> float:
    r"""Upper bound on the second moment of one coordinate of the median of means.

    With one of ``beta``, ``alpha`` (call it :math:`q`) and the scale of a group mean
    :math:`c_q = s n^{(1-q)/q}`, times :math:`2^{1/q}` if :math:`q > 1`,

    .. math:: E\,\mathrm{Med}^2 \le 16^{m/(q(m+1))} c_q^2 \frac{q(m+1)}{q(m+1) - 2}

    With both, the sum over :math:`q` of :math:`64^{m/(q(m+1))} (2 c_q)^2
    \frac{q(m+1)}{q(m+1)-2}`.

    Args:
        num_groups: :math:`k = 2m + 1`.
        group_size: :math:`n`.
        beta: order of a moment of the symmetric part, in (0, 1].
        s_beta: its scale, :math:`(E|S|^\beta)^{1/\beta}`.
        alpha: order of a moment of the centred part, in (1, 2].
        s_alpha: its scale.

    Raises:
        ValueError: an argument is out of range, none of ``beta`` and ``alpha`` is
            given, or the groups are too few for a second moment (the message says how
            many).

    Example:
        >>> round(second_moment_bound(15, 1, beta=1.0, s_beta=1.0), 3)
        15.085
    """
    check_integer("num_groups", num_groups, odd=True)
    check_integer("group_size", group_size)
    _check_laws(beta, s_beta, alpha, s_alpha)
    m = (num_groups - 1) // 2
    both = beta is not None and alpha is not None
    base, spread = (64.0, 2.0) if both else (16.0, 1.0)
    total = 0.0
    for name, q, scale in (("beta", beta, s_beta), ("alpha", alpha, s_alpha)):
        if q is None:
            continue
        _check_exists(name, q, m)
        order = q * (m + 1)
        size = (spread * _mean_scale(q, scale, group_size)) ** 2
        total += base ** (m / order) * size * order / (order - 2)
    return total


def bias_bound(
    num_groups: int, group_size: int, *, alpha: float, s_alpha: float
) -> float:
    r"""Upper bound on the bias of one coordinate of the median of means.

    .. math:: |E g_i - \nabla_i f| \le (2k)^{1/\alpha} n^{-(\alpha-1)/\alpha} s_\alpha

    Only the centred part enters: symmetric noise leaves no bias. The rate in :math:`n`
    is attained by one-sided Pareto noise.

    Args:
        num_groups: :math:`k`.
        group_size: :math:`n`.
        alpha: order of a moment of the centred part, in (1, 2].
        s_alpha: its scale.

    Raises:
        ValueError: an argument is out of range.

    Example:
        >>> round(bias_bound(7, 4, alpha=2.0, s_alpha=1.0), 4)
        1.8708
    """
    check_integer("num_groups", num_groups, odd=True)
    check_integer("group_size", group_size)
    _check_laws(None, 0.0, alpha, s_alpha)
    rate = group_size ** (-(alpha - 1) / alpha)
    return (2 * num_groups) ** (1 / alpha) * rate * s_alpha


def cauchy_median_second_moment(num_groups: int, scale: float = 1.0) -> float:
    r"""Exact second moment of the median of means of Cauchy noise, any group size.

    A mean of Cauchy draws is Cauchy, so with :math:`k = 2m + 1 \ge 5`

    .. math:: E\,\mathrm{Med}^2 = \gamma^2 \frac{2 (2m+1)!}{(m!)^2 \pi^{2m+1}}
        \int_0^{\pi/2} x^m (\pi - x)^m \cot^2 x \, dx

    Args:
        num_groups: :math:`k`, odd and at least 5.
        scale: :math:`\gamma \ge 0`.

    Raises:
        ValueError: ``num_groups`` is even or below 5 (no second moment), or ``scale``
            is negative.

    Example:
        >>> round(cauchy_median_second_moment(15), 6)
        0.204798
    """
    from scipy.integrate import quad

    check_integer("num_groups", num_groups, 5, odd=True)
    check_interval("scale", scale, 0.0)
    m = (num_groups - 1) // 2
    log_factor = (
        math.log(2) + math.lgamma(2 * m + 2) - 2 * math.lgamma(m + 1)
    ) - num_groups * math.log(math.pi)

    def integrand(x):
        log_weight = log_factor + m * (math.log(x) + math.log(math.pi - x))
        return math.exp(log_weight) / math.tan(x) ** 2

    value = quad(integrand, 0.0, math.pi / 2, epsabs=0.0, epsrel=1e-11, limit=200)[0]
    return scale**2 * value


def plan_groups(
    budget: int,
    beta: float,
    s_beta: float,
    alpha: float,
    s_alpha: float,
) -> tuple[int, int]:
    r"""The split of a batch that minimizes variance bound plus squared bias bound.

    Symmetric noise with :math:`\beta \le 1` wants small groups, skewed noise large
    ones. Over the odd divisors :math:`k` of the budget with :math:`\beta(m+1) > 2` this
    minimizes :func:`second_moment_bound` plus the square of :func:`bias_bound`; a part
    with scale 0 drops out, and ties go to the larger :math:`k`.

    Args:
        budget: :math:`B`, the number of oracle calls in a batch.
        beta: order of a moment of the symmetric part, in (0, 1].
        s_beta: its scale.
        alpha: order of a moment of the centred part, in (1, 2].
        s_alpha: its scale.

    Returns:
        ``(num_groups, group_size)`` with product ``budget``.

    Raises:
        ValueError: an argument is out of range, or no odd divisor is large enough.

    Example:
        >>> plan_groups(105, beta=1.0, s_beta=1.0, alpha=1.5, s_alpha=0.0)
        (7, 15)
    """
    check_integer("budget", budget)
    _check_laws(beta, s_beta, alpha, s_alpha)
    divisors = [
        k
        for k in range(1, budget + 1, 2)
        if budget % k == 0 and beta * ((k + 1) // 2) > 2
    ]
    if not divisors:
        raise ValueError(
            f"budget must have an odd divisor >= {2 * math.floor(2 / beta) + 1} "
            f"for beta = {beta}, got {budget}"
        )

    def cost(k: int) -> float:
        n = budget // k
        variance = second_moment_bound(
            k, n, beta=beta, s_beta=s_beta, alpha=alpha, s_alpha=s_alpha
        )
        return variance + bias_bound(k, n, alpha=alpha, s_alpha=s_alpha) ** 2

    costs = [cost(k) for k in divisors]
    best = max(k for k, c in zip(divisors, costs, strict=True) if c == np.min(costs))
    return best, budget // best
