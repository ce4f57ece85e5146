"""Operations on flows: run, inspect, repair, erase."""
