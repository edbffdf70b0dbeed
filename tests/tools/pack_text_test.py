#!/usr/bin/python3
"""Word pieces, learned vocabularies and token records against an implementation of their own in
Python: its Unicode tables, the plain definition of the merges, the format by its description.

    pack_text_test.py --programs build/bin
"""

import argparse
import collections
import os
import random
import signal
import struct
import subprocess
import sys
import tempfile
import time
import unicodedata

sys.dont_write_bytecode = True
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
IDEOGRAPHS = [(0x4E00, 0x9FFF), (0x3400, 0x4DBF), (0x20000, 0x2A6DF), (0x2A700, 0x2B73F),
              (0x2B740, 0x2B81F), (0x2B820, 0x2CEAF), (0xF900, 0xFAFF), (0x2F800, 0x2FA1F)]


def words_of(text, cased):
    spread = ""
    for char in text:
        category = unicodedata.category(char)
        if char in "\t\n\r" or category == "Zs":
            spread += " "
        elif category[0] == "C" or char == "\ufffd":
            continue
        elif any(low <= ord(char) <= high for low, high in IDEOGRAPHS):
            spread += f" {char} "
        else:
            spread += char
    words = []
    for word in spread.split():
        if not cased:
            word = unicodedata.normalize("NFD", "".join(c.lower() for c in word))
            word = "".join(c for c in word if unicodedata.category(c) != "Mn")
        part = ""
        for char in word:
            symbol = char.isascii() and char.isprintable() and not char.isalnum() and char != " "
            if symbol or unicodedata.category(char)[0] == "P":
                words += [part, char]
                part = ""
            else:
                part += char
        words.append(part)
    return [word for word in words if word]


def pieces_of(word, vocabulary):
    if len(word) > 100:
        return ["[UNK]"]
    pieces, begin = [], 0
    while begin < len(word):
        for end in range(len(word), begin, -1):
            piece = ("##" if begin else "") + word[begin:end]
            if piece in vocabulary:
                break
        else:
            return ["[UNK]"]
        pieces.append(piece)
        begin = end
    return pieces


def learn(words, size):
    counts = collections.Counter(words)
    split = {word: [c if i == 0 else "##" + c for i, c in enumerate(word)] for word in counts}
    characters = {piece for pieces in split.values() for piece in pieces}
    tokens = SPECIAL + sorted(characters, key=lambda t: t.encode())
    while len(tokens) < size:
        pairs = collections.Counter()
        for word, pieces in split.items():
            for pair in zip(pieces, pieces[1:]):
                pairs[pair] += counts[word]
        if not pairs:
            break
        best = min(pairs, key=lambda p: (-pairs[p], p[0].encode(), p[1].encode()))
        if pairs[best] < 2:
            break
        made = best[0] + best[1][2:]
        if made not in tokens:
            tokens.append(made)
        for word, pieces in split.items():
            merged, i = [], 0
            while i < len(pieces):
                if tuple(pieces[i:i + 2]) == best:
                    merged.append(made)
                    i += 2
                else:
                    merged.append(pieces[i])
                    i += 1
            split[word] = merged
    return tokens


def records_of(folder):
    """Token lists, by the description in worker/data/token_records.h."""
    with open(os.path.join(folder, "index.tokens"), "rb") as file:
        index = file.read()
    assert index[:8] == b"FSTOKENS"
    version, shards, sequence, vocabulary, pairs = struct.unpack_from("<5I", index, 8)
    assert version == 2 and pairs == 0
    (vocabulary_sum,) = struct.unpack_from("<Q", index, 28)
    counts = struct.unpack_from(f"<{shards}Q", index, 36)
    kind = "H" if vocabulary <= 65536 else "I"
    size = 16 + sequence * struct.calcsize(kind)
    for shard, count in enumerate(counts):
        with open(os.path.join(folder, f"tokens-{shard:05d}.tokens"), "rb") as file:
            data = file.read()
        assert data[:8] == b"FSTOKREC" and len(data) == 24 + count * size
        assert struct.unpack_from("<IIQ", data, 8) == (2, shard, vocabulary_sum)
        for i in range(count):
            at = 24 + i * size
            (length,) = struct.unpack_from("<H", data, at + 8)
            yield list(struct.unpack_from(f"<{length}{kind}", data, at + 16))


def made_up_text(generator):
    """All that the rules are about: scripts, accents, marks, spaces, controls."""
    pools = ["abcdefghijklmnopqrstuvwxyz", "ABCDEFGHIJ", "0123456789", "\u00e9\u00e8\u00fc\u00df\u00c5\u00d8\u0141",
             "\u0391\u03b2\u0413\u0434\u0416", "\u05d0\u05d1\u0634\u0645", "\u4e2d\u6587\u5b57\uf900\U00020001",
             "\u3042\u30a2\uac00\ud55c", "\u0301\u0308\u0327\u20dd", ".,;:!?-_'\"()[]{}<>@#$%^&*+=/\\\\|`~",
             "\u2014\u201c\u201d\u00bf\u3002\u00ab", "\u00a0\u2003\u3000\u2028\u2029\t", "\u200d\u00ad\u0007\ufffd\ufeff",
             "\u20ac\u00a3\u2192\u263a", "\u0130\u01c5\u1e9e\ufb01"]
    lines = []
    for _ in range(300):
        line = ""
        for _ in range(generator.randrange(60)):
            pool = generator.choice(pools if generator.random() < 0.4 else pools[:3])
            line += generator.choice(pool)
            if generator.random() < 0.2:
                line += " "
        lines.append(line)
    lines.append("x" * 100 + " " + "x" * 101)
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--programs", required=True)
    arguments = parser.parse_args()
    foreshard = os.path.join(arguments.programs, "foreshard")

    def run(*words):
        return subprocess.run([foreshard, *words], check=True, capture_output=True, text=True)

    generator = random.Random(7)
    with open(os.path.abspath(__file__), encoding="utf-8") as file:
        own_text = file.read()
    failures = []
    with tempfile.TemporaryDirectory(prefix="foreshard-text-") as folder:
        for cased in (False, True):
            for name, text in (("made_up", made_up_text(generator)), ("own", own_text)):
                path = os.path.join(folder, f"{name}-{cased}.txt")
                with open(path, "w", encoding="utf-8", newline="") as file:
                    file.write(text)
                flags = ["--cased"] if cased else []
                vocabulary = os.path.join(folder, f"{name}-{cased}.vocab")
                size = 400
                run("learn-vocabulary", "--input", path, "--size", str(size), "--output", vocabulary, *flags)
                with open(vocabulary, encoding="utf-8", newline="\n") as file:
                    tokens = file.read().split("\n")[:-1]
                words = words_of(text, cased)
                if tokens != learn(words, size):
                    failures.append(f"{name}, cased {cased}: another vocabulary is learned")
                packed = os.path.join(folder, f"{name}-{cased}.packed")
                run("pack-text", "--input", path, "--vocabulary", vocabulary, "--sequence", "32", "--shards", "2",
                    "--output", packed, *flags)
                ours = []
                for record in records_of(packed):
                    assert record[0] == 2 and record[-1] == 3
                    ours += [tokens[i] for i in record[1:-1]]
                if ours and ours[-1] == "[SEP]":
                    ours.pop()
                theirs = [piece for word in words for piece in pieces_of(word, set(tokens))]
                if ours != theirs:
                    at = next((i for i, (a, b) in enumerate(zip(ours, theirs)) if a != b), min(len(ours), len(theirs)))
                    failures.append(f"{name}, cased {cased}: piece {at} of {len(theirs)} differs: "
                                    f"{ours[at:at + 5]}, not {theirs[at:at + 5]}")
                print(f"{name}, cased {cased}: {len(words)} words, {len(tokens)} tokens, {len(theirs)} pieces")

        # Ctrl-C leaves nothing half.
        path = os.path.join(folder, "large.txt")
        with open(path, "w", encoding="utf-8") as file:
            for i in range(400000):
                file.write(f"line {i} of a text that takes a while {i * 7919 % 100003}\n")
        output = os.path.join(folder, "interrupted")
        process = subprocess.Popen([foreshard, "pack-text", "--input", path, "--vocabulary", vocabulary, "--output",
                                    output], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
        while not os.path.exists(output + ".part") and process.poll() is None:
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
        if process.returncode == 0:
            print("packing was faster than the interrupt")
        elif process.returncode != 130 or "nothing is left of" not in said:
            failures.append(f"an interrupt ended it with {process.returncode}: {said}")
        elif [name for name in os.listdir(folder) if name.startswith("interrupted")]:
            failures.append("an interrupt has left something")
    for failure in failures:
        print(f"FAILED {failure}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
