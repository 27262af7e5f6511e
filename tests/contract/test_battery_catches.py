"""The battery can fail: each broken method is caught by the rule that it breaks."""

import re

import broken
import broken_shapes
import jax
import optax
import pytest
import sound
from optax.experimental import aggregating

from jaxopt_suite import testing

RATE = {"rate": 0.1}

# (rule that must catch it, factory, arguments of the battery)
BROKEN_GRADIENT_TRANSFORMATIONS = [
    ("documented", broken.no_example, {}),
    ("bad_arguments", broken.accepts_anything, {"bad": [({"rate": -1.0}, "rate")]}),
    ("traceable", broken.numpy_on_updates, {}),
    ("state_is_arrays", broken.python_state, {}),
    ("stable_state", broken.growing_state, {}),
    ("stable_state", broken.drifting_dtype, {}),
    ("stable_state", broken.weak_state, {}),
    ("keeps_dtype", broken.upcasts, {}),
    (
        "float32_statistics",
        broken.narrow_statistics,
        {"hyperparameters": {"decay": 0.9}},
    ),
    ("pure_update", broken.hidden_counter, {}),
    ("pure_update", broken.hidden_random, {}),
    ("one_trace", broken.branches_on_rate, {}),
    ("one_trace", broken.compiles_per_rate, {}),
    (
        "jit_equals_eager",
        broken.guesses_traced_rate,
        {"hyperparameters": {"rate": 0.3}},
    ),
    ("vmap_equals_loop", broken.calls_the_host, {}),
    ("shard_map_equals_loop", broken.pins_its_device, {}),
    ("checkpoint", broken.remembers_arrays, {}),
    ("explicit_keys", broken.ignores_key, {"key": "key"}),
    ("zero_gradients", broken.unit_norm, {}),
    ("nan_is_visible", broken.hides_nan, {}),
    ("any_pytree", broken.assumes_dict, {}),
    ("equinox_params", broken.assumes_builtin_containers, {}),
    ("accepts_extra_args", broken.closed_signature, {}),
    ("inject_hyperparams", broken.open_signature, {}),
    ("schedules", broken.refuses_schedules, {}),
    ("masked", broken.rebuilds_tuples, {}),
    ("update_shape", broken.keeps_samples, {"hyperparameters": {}, "num_samples": 4}),
    ("update_shape", broken.reduces_untold, {"hyperparameters": {}, "num_samples": 4}),
]


# Rules with a compile of their own: not run where another one is to catch.
COSTLY = (
    "one_trace",
    "jit_equals_eager",
    "vmap_equals_loop",
    "shard_map_equals_loop",
    "pmap_equals_loop",
    "donation",
    "checkpoint",
)


def require_caught(check, rule, factory, *args, **kwargs):
    skip = {name: "another rule is to catch it" for name in COSTLY if name != rule}
    message = f"rule {rule} is broken by {factory.__name__}"
    with pytest.raises(AssertionError, match=re.escape(message)):
        check(factory, *args, skip=skip, **kwargs)


@pytest.mark.parametrize(
    ("rule", "factory", "arguments"),
    BROKEN_GRADIENT_TRANSFORMATIONS,
    ids=[factory.__name__ for _, factory, _ in BROKEN_GRADIENT_TRANSFORMATIONS],
)
def test_broken_gradient_transformation_is_caught_by_its_rule(rule, factory, arguments):
    arguments = {"hyperparameters": RATE} | arguments
    check = testing.check_gradient_transformation
    require_caught(check, rule, factory, **arguments)


@pytest.mark.parametrize(
    ("rule", "factory"),
    [
        ("select_is_pure", broken_shapes.remembers_context),
        ("stable_state", broken_shapes.keeps_history),
        ("ignores_regret", broken_shapes.reads_regret),
        ("batched_feedback", broken_shapes.one_at_a_time),
        ("masked_feedback", broken_shapes.ignores_mask),
        ("returns_policy", sound.noisy_arms),
    ],
)
def test_broken_policy_is_caught_by_its_rule(rule, factory):
    world = sound.noisy_arms(0.1)
    name = "noise" if factory is sound.noisy_arms else "bonus"
    require_caught(testing.check_policy, rule, factory, {name: 0.5}, environment=world)


def test_policy_that_only_claims_to_draw_is_caught():
    require_caught(
        testing.check_policy,
        "keys_matter",
        broken_shapes.draws_once,
        {"scale": 1.0},
        environment=sound.noisy_arms(0.1),
        randomized=True,
    )


@pytest.mark.parametrize(
    ("rule", "factory"),
    [
        ("stable_context", broken_shapes.changes_context),
        ("feedback_fields", broken_shapes.forgets_mask),
        ("pure_update", broken_shapes.numpy_noise),
        ("keys_matter", broken_shapes.ignores_keys),
        ("returns_environment", sound.optimistic),
    ],
)
def test_broken_environment_is_caught_by_its_rule(rule, factory):
    name = "bonus" if factory is sound.optimistic else "noise"
    require_caught(
        testing.check_environment, rule, factory, {name: 0.1}, decide=pick_arm
    )


@pytest.mark.parametrize(
    ("rule", "factory"),
    [
        ("returns_transformation", broken_shapes.bare_pair),
        ("traceable", broken_shapes.swaps_its_results),
        ("keeps_dtype", broken_shapes.wide_outputs),
        ("nan_is_visible", broken_shapes.skips_nan),
    ],
)
def test_broken_transformation_is_caught_by_its_rule(rule, factory):
    require_caught(
        testing.check_transformation,
        rule,
        factory,
        RATE,
        init=lambda key: (draw(key),),
        inputs=draw,
    )


def draw(key):
    return jax.random.normal(key, (3,))


def pick_arm(context, key):
    del context
    return jax.random.randint(key, (), 0, sound.NUM_ARMS)


def test_sound_methods_of_every_shape_pass():
    world = sound.noisy_arms(0.1)
    bad_noise = [({"noise": -1.0}, "noise must be >= 0, got -1.0")]
    reports = [
        testing.check_policy(sound.optimistic, {"bonus": 0.5}, environment=world),
        testing.check_policy(
            sound.perturbed,
            {"scale": 1.0},
            environment=world,
            randomized=True,
            skip={name: "run on the other policy" for name in COSTLY},
        ),
        testing.check_environment(
            sound.noisy_arms, {"noise": 0.1}, decide=pick_arm, bad=bad_noise
        ),
        testing.check_transformation(
            sound.moving_average, RATE, init=lambda key: (draw(key),), inputs=draw
        ),
    ]
    for report in reports:
        not_run = {name for name, result in report.items() if result != "passed"}
        assert not_run <= {"bad_arguments", "explicit_keys", "keys_matter", *COSTLY}
    assert reports[1]["keys_matter"] == "passed"
    assert reports[2]["bad_arguments"] == "passed"


def test_well_made_optax_methods_pass():
    moments = {"float32_statistics": "its moments have the dtype of the parameters"}
    report = testing.check_gradient_transformation(
        optax.adam,
        {"learning_rate": 0.1, "b1": 0.9, "b2": 0.999, "eps": (1e-8, 1e-6)},
        skip=moments,
    )
    assert report["float32_statistics"].startswith("skipped: its moments")
    assert report["schedules"] == "passed"
    report = testing.check_gradient_transformation(optax.sgd, {"learning_rate": 0.1})
    assert report["float32_statistics"] == "passed"
    report = testing.check_gradient_transformation(
        aggregating.average_per_element_updates,
        num_samples=4,
        skip={
            "documented": "it has no example",
            "accepts_extra_args": "its update has a closed signature",
        },
    )
    assert report["process"] == "passed"


def test_sam_passes_with_a_gradient_oracle():
    exempt = {
        "zero_gradients": "optax.contrib.normalize divides by the norm",
        "accepts_extra_args": "its update has a closed signature",
    }
    adversary = optax.chain(optax.contrib.normalize(), optax.sgd(0.05))

    def oracle(key, params, updates):
        del key, params, updates
        return {"grad_fn": lambda p, i: jax.tree.map(lambda x: 2 * x, p)}

    testing.check_gradient_transformation(
        optax.contrib.sam,
        static={
            "optimizer": optax.sgd(0.1),
            "adv_optimizer": adversary,
            "opaque_mode": True,
        },
        extra_args=oracle,
        skip=exempt,
    )


def test_message_says_which_rule_where_and_what_to_do():
    with pytest.raises(AssertionError) as caught:
        testing.check_gradient_transformation(broken.keeps_params, RATE)
    lines = str(caught.value).splitlines()
    assert lines[0] == (
        "rule donation is broken by keeps_params: "
        ".params['b'] and .state.value['b'] are one array"
    )
    assert "without jnp.copy" in " ".join(lines[1:])


def test_rule_that_is_skipped_needs_its_name_and_a_reason():
    for skip, message in [
        ({"no_such_rule": "why"}, "no rule 'no_such_rule', must be one of"),
        ({"donation": " "}, "must be a reason"),
    ]:
        with pytest.raises(ValueError, match=message):
            testing.check_gradient_transformation(optax.sgd, RATE, skip=skip)
