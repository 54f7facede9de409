"""The config object, and the keywords that fill it."""

import dataclasses

import pytest
from support import watched

import oversmooth
from oversmooth.monitor import Monitor, MonitorConfig


def test_keywords_fill_the_config_and_go_before_what_it_has():
    config = MonitorConfig(every=7, spectra=3, tokens="cos")
    assert Monitor(watched.Known(), watched.probe(), config=config).config == config
    changed = Monitor(watched.Known(), watched.probe(), 5, config=config, ranks=2, dominance=True).config
    assert changed == dataclasses.replace(config, every=5, ranks=2, dominance=1)
    assert Monitor(watched.Known(), watched.probe()).config == MonitorConfig()


def test_passing_is_the_earlier_name_of_use_training_batch():
    assert Monitor(watched.Known(), passing=True).config == MonitorConfig(use_training_batch=True)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"evry": 3}, "Monitor has no setting 'evry'; did you mean 'every'"),
        ({"config": {"every": 3}}, "config is .*; give oversmooth.monitor.MonitorConfig"),
        ({"use_training_batch": 3}, "use_training_batch is 3; give True or False"),
    ],
)
def test_what_is_no_setting_is_refused(settings, sentence):
    with pytest.raises(oversmooth.InputError, match=sentence):
        Monitor(watched.Known(), watched.probe(), **settings)


def test_no_object_here_has_more_than_twelve_fields():
    monitor = Monitor(watched.Known(), use_training_batch=True, gradients=1, alarms=oversmooth.Alarm("cos", above=1))
    recorder = monitor.recorder
    held = (monitor, recorder, recorder.inputs, monitor.alarms, monitor.history)
    assert max(len(vars(one)) for one in held) <= 12
