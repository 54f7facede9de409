"""Where the cases come from: one module a class of attack, each with ``cases()``."""

from adversary.inputs.attacks import (
    api,
    code,
    configs,
    data,
    diagnoses,
    environment,
    kinds,
    names,
    options,
    outputs,
    runs,
    shards,
    weights,
)

ALL = (options, weights, configs, shards, code, kinds, names, data, diagnoses, runs, outputs, environment, api)
