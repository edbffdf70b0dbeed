"""Whether a disturbed run has come to what the undisturbed one came to."""

import math

# A disturbed run of the quadratic computes some batches twice and leaves some out, in another
# order. Of 30 undisturbed runs a rule, on loaded and idle machines, the losses lay within
# a few per cent of each other; a lost or doubled stretch of a shard moves them by far more.
LOSS_TOLERANCE = 0.25
# Points of accuracy between two runs of the default job with other arrival orders.
ACCURACY_TOLERANCE = 0.01


def same_rounds(one, other):
    """Whether all rounds of two runs were contributed to alike."""
    return one.contributions is not None and one.contributions == other.contributions


def compare(verdict, reference):
    """Violations, as lines; notes in verdict.figures."""
    found = []
    if same_rounds(verdict, reference):
        verdict.figures["bit_for_bit"] = bytes(verdict.values) == bytes(reference.values)
        if not verdict.figures["bit_for_bit"]:
            found.append("every round had the contributions of the undisturbed run, but the "
                         "parameters are others")
    loss, expected = verdict.figures.get("loss"), reference.figures.get("loss")
    if loss is not None and expected is not None:
        verdict.figures["loss_ratio"] = loss / expected
        if not abs(math.log(loss / expected)) <= math.log1p(LOSS_TOLERANCE):
            found.append(f"loss {loss:.5g} at the end, {expected:.5g} undisturbed")
    accuracy, expected = verdict.figures.get("accuracy"), reference.figures.get("accuracy")
    if accuracy is not None and expected is not None:
        verdict.figures["accuracy_difference"] = accuracy - expected
        if abs(accuracy - expected) > ACCURACY_TOLERANCE:
            found.append(f"accuracy {100 * accuracy:.2f} % at the end, {100 * expected:.2f} % "
                         "undisturbed")
    return found
