"""Search for predecoders, print the Pareto front, and decode shots with the best one.

Run it in a workspace (`autoqec init workspace`): python search.py
"""

import autoqec

if __name__ == "__main__":
    result = autoqec.run("smoke", profile="smoke", rounds=1)
    print(f"run {result.run_id}: {len(result.rounds)} round(s), stopped: {result.stop_reason}")
    for entry in result.front:
        if entry.reduction is not None:
            print(f"round {entry.round}: {entry.reduction.estimate:.1%} fewer failures")
    for entry in autoqec.load_run(result.run_id).rounds:
        print(f"round {entry.round}: {entry.outcome}: {entry.hypothesis}")
