"""Research optimization methods as pure JAX functions, in the style of Optax."""
