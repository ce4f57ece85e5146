"""How often each word has come over a socket."""

from pyspark.sql import DataFrame, functions as F

from headrace import Console, Flow, Input, SocketSource


def word_count(lines: DataFrame) -> DataFrame:
    words = lines.select(F.explode(F.split(F.lower("value"), r"\W+")).alias("word"))
    return words.where("word != ''").groupBy("word").count()


words = Flow(
    name="words",
    inputs=Input(SocketSource("127.0.0.1", 9999)),
    transform=word_count,
    sink=Console(),
    output_mode="complete",
)
