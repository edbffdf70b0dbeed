"""The methods that are compared: each a name and what it overrides in the base job.

A method is one entry of METHODS. The first one that a study runs is its reference, full
precision, which the others are measured against.
"""

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Method:
    name: str
    title: str
    overrides: tuple  # "field=value", as for --set

    @property
    def two_phases(self):
        """It trains in full precision first and compresses later."""
        return "update.rule=apmsqueeze" in self.overrides

    @property
    def one_bit_both_ways(self):
        """All along, in both directions."""
        return {"compression.push=one_bit", "compression.reply=one_bit"} <= set(self.overrides)


METHODS = (
    Method("adam", "Adam, fp32",
           ("update.rule=adam", "update.synchronous=true",
            "compression.push=none", "compression.reply=none")),
    Method("adam_fp16", "Adam, fp16 both ways",
           ("update.rule=adam", "update.synchronous=true",
            "compression.push=fp16", "compression.reply=fp16")),
    Method("apmsqueeze", "APMSqueeze, 1 bit both ways",
           # Its replies are encoded as its pushes are.
           ("update.rule=apmsqueeze", "compression.push=one_bit", "compression.reply=none")),
    Method("dana", "DANA-Slim, 1 bit both ways",
           ("update.rule=dana_slim", "update.momentum=0.9", "schedule.learning_rate=0.05",
            "compression.push=one_bit", "compression.reply=one_bit")),
)


def parse_method(text):
    """"NAME: FIELD=VALUE FIELD=VALUE ..." as a method; ValueError says what is wrong."""
    name, colon, rest = text.partition(":")
    name = name.strip()
    overrides = tuple(rest.split())
    if not colon or not re.fullmatch(r"[a-z0-9_]+", name) or not overrides or any(
            not re.fullmatch(r"[a-z0-9_.]+=.*", override) for override in overrides):
        raise ValueError(f"'{text}': write a method as 'NAME: FIELD=VALUE ...', its name in small "
                         "letters, digits and '_', as in 'half: update.rule=ssgd "
                         "compression.push=fp16'")
    return Method(name, name, overrides)


def choose(names, extra):
    """The methods of these names, in this order, from METHODS and `extra`; without names,
    all of METHODS and then all of `extra`. ValueError names what there is not."""
    known = {method.name: method for method in METHODS}
    for method in extra:
        if method.name in known:
            raise ValueError(f"method '{method.name}' is there already; choose another name")
        known[method.name] = method
    if names is None:
        return list(known.values())
    for name in names:
        if name not in known:
            raise ValueError(f"'{name}' is no method; choose from {', '.join(known)}, or describe "
                             "it with --method")
    if len(set(names)) != len(names):
        raise ValueError("a method is named twice")
    return [known[name] for name in names]
