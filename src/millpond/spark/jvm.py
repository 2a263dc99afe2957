"""Spark's plan objects through the Java gateway: the constructors and conversions that plan cutting needs.

A call through the gateway costs about a tenth of a millisecond and looking a class up costs several, so
classes are looked up once. What a plan means is not decided here.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from typing import Any, NamedTuple

from py4j.java_gateway import is_instance_of
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.classic.dataframe import DataFrame as ClassicDataFrame
from pyspark.sql.types import DataType, StructType, _parse_datatype_json_string

__all__ = [
    "Catalyst",
    "JavaObject",
    "items",
    "java_class",
    "kind",
    "plain_sql",
    "rebuild",
    "scala_object",
    "to_python_type",
]

JavaObject = Any
"""An object of the JVM, held through the gateway."""

_PARTITIONING = "org.apache.spark.sql.catalyst.plans.physical"
_NO_SHUFFLE = 1_000_003
_NUMBERS_WITHIN_A_TASK = (1 << 33) - 1
"""Spark's numbers of rows hold the task above these bits."""
_LOCAL_RELATIONS_BELOW = "spark.sql.execution.arrow.localRelationThreshold"
_IDS = re.compile(r"#\d+L?")


def items(seq: JavaObject) -> list[JavaObject]:
    """The elements of a Scala sequence."""
    return [seq.apply(i) for i in range(seq.size())]


def kind(node: JavaObject) -> str:
    """The simple class name of a plan node or expression."""
    return str(node.getClass().getSimpleName())


def to_python_type(java_type: JavaObject) -> DataType:
    return _parse_datatype_json_string(java_type.json())


def plain_sql(expression: JavaObject) -> str:
    """The expression as Spark writes it in SQL, without what differs between two runs of the same query:
    expression ids and the names of views and tables before a column's name."""
    text = str(expression.sql())
    for attribute in items(expression.references().toSeq()):
        qualified = str(attribute.sql())
        bare = _last_name_part(qualified)
        if bare != qualified:
            text = text.replace(qualified, bare)
    return _IDS.sub("", text)


def _last_name_part(qualified: str) -> str:
    """`a.b.c` gives `c`; a dot between backquotes belongs to the name."""
    quoted = False
    start = 0
    for i, character in enumerate(qualified):
        if character == "`":
            quoted = not quoted
        elif character == "." and not quoted:
            start = i + 1
    return qualified[start:]


def java_class(jvm: Any, path: str) -> Any:
    """The class with this full name."""
    found = jvm
    for part in path.split("."):
        found = getattr(found, part)
    return found


def scala_object(jvm: Any, path: str) -> JavaObject:
    """The Scala object with this full name."""
    return getattr(getattr(jvm, f"{path}$"), "MODULE$")


class PlannedJoin(NamedTuple):
    """What Spark makes of a join's condition."""

    keys: tuple[list[JavaObject], list[JavaObject]]
    """Expressions of the left side and of the right that have to be equal."""
    others: list[JavaObject]
    """What else has to hold."""
    condition: JavaObject
    """The same after Spark's optimiser, as an Option of Scala's, over the columns of `node`."""
    node: JavaObject


class Catalyst:
    """Spark's plan classes, reached through one session's gateway."""

    def __init__(self, session: SparkSession) -> None:
        self._session = session
        self._jvm = session._jvm
        self._gateway = session.sparkContext._gateway
        self._found: dict[tuple[Callable[[Any, str], Any], str], Any] = {}
        self._limits: dict[int, JavaObject] = {}

    def _class(self, path: str) -> Any:
        return self._looked_up(java_class, path)

    def _object(self, path: str) -> JavaObject:
        return self._looked_up(scala_object, path)

    def _looked_up(self, find: Callable[[Any, str], Any], path: str) -> Any:
        """Looking a class up takes several calls to the JVM: once."""
        if (find, path) not in self._found:
            self._found[find, path] = find(self._jvm, path)
        return self._found[find, path]

    @cached_property
    def _array_list(self) -> Any:
        return self._class("java.util.ArrayList")

    @cached_property
    def _to_scala(self) -> Any:
        return self._class("scala.jdk.javaapi.CollectionConverters")

    @cached_property
    def _option(self) -> Any:
        return self._class("scala.Option")

    @cached_property
    def nil(self) -> JavaObject:
        return self._object("scala.collection.immutable.Nil")

    def seq(self, elements: Iterable[JavaObject]) -> JavaObject:
        gathered = self._array_list()
        for element in elements:
            gathered.add(element)
        return self._to_scala.asScala(gathered).toSeq()

    def some(self, value: JavaObject) -> JavaObject:
        return self._option.apply(value)

    # Expressions

    @cached_property
    def _expressions(self) -> Any:
        return self._class("org.apache.spark.sql.catalyst.expressions")

    @cached_property
    def _alias(self) -> Any:
        return self._expressions.Alias

    @cached_property
    def _named_expression(self) -> JavaObject:
        return self._object("org.apache.spark.sql.catalyst.expressions.NamedExpression")

    @cached_property
    def no_metadata(self) -> JavaObject:
        return self._class("org.apache.spark.sql.types.Metadata").empty()

    def metadata(self, entries: Mapping[str, int]) -> JavaObject:
        return self._class("org.apache.spark.sql.types.Metadata").fromJson(json.dumps(entries))

    @cached_property
    def long_type(self) -> JavaObject:
        return self._object("org.apache.spark.sql.types.LongType")

    @cached_property
    def boolean_type(self) -> JavaObject:
        return self._object("org.apache.spark.sql.types.BooleanType")

    def alias(self, child: JavaObject, name: str) -> JavaObject:
        return self._exact_alias(child, name, self._named_expression.newExprId(), self.nil, self.some(None))

    def alias_as(self, child: JavaObject, attribute: JavaObject) -> JavaObject:
        """`child` in the place of `attribute`: same id, name, qualifier and metadata."""
        metadata = self.some(attribute.metadata())
        return self._exact_alias(child, attribute.name(), attribute.exprId(), attribute.qualifier(), metadata)

    def _exact_alias(
        self, child: JavaObject, name: str, expr_id: JavaObject, qualifier: JavaObject, metadata: JavaObject
    ) -> JavaObject:
        return self._alias(child, name, expr_id, qualifier, metadata, self.nil)

    def attribute(self, name: str, data_type: JavaObject, nullable: bool) -> JavaObject:
        """A new attribute that no plan produces yet."""
        return self._expressions.AttributeReference(
            name, data_type, nullable, self.no_metadata, self._named_expression.newExprId(), self.nil
        )

    def widened(self, child: JavaObject, data_type: JavaObject) -> JavaObject:
        """`child` cast to a type that holds all its values."""
        if child.dataType().equals(data_type):
            return child
        return self._expressions.Cast(child, data_type, self.some(None))

    def both(self, left: JavaObject, right: JavaObject) -> JavaObject:
        return self._expressions.And(left, right)

    def equal_or_both_null(self, equality: JavaObject) -> JavaObject:
        return self._expressions.EqualNullSafe(equality.left(), equality.right())

    def is_not_null(self, child: JavaObject) -> JavaObject:
        return self._expressions.IsNotNull(child)

    def micros(self, timestamp: JavaObject) -> JavaObject:
        """A timestamp as int64 microseconds, without loss."""
        return self._expressions.PreciseTimestampConversion(timestamp, timestamp.dataType(), self.long_type)

    def plus(self, number: JavaObject, value: int) -> JavaObject:
        """An int64 expression and a constant."""
        return self._expressions.Add(number, self.widened(self.literal(value), self.long_type))

    def struct_field(self, struct: JavaObject, ordinal: int) -> JavaObject:
        return self._expressions.GetStructField(struct, ordinal, self.some(None))

    @cached_property
    def _literal(self) -> JavaObject:
        return self._object("org.apache.spark.sql.catalyst.expressions.Literal")

    def literal(self, value: str | int | bool) -> JavaObject:
        return self._literal.apply(value)

    def null_of(self, data_type: JavaObject) -> JavaObject:
        return self._literal.create(None, data_type)

    def struct_of(self, fields: Iterable[tuple[str, JavaObject]]) -> JavaObject:
        parts: list[JavaObject] = []
        for name, value in fields:
            parts += [self.literal(name), value]
        return self._expressions.CreateNamedStruct(self.seq(parts))

    def normalized_key(self, key: JavaObject) -> JavaObject:
        """The key in the form in which equal values have equal bytes: one zero, one NaN, maps in order."""
        rules = "org.apache.spark.sql.catalyst.optimizer"
        sorter = self._object(f"{rules}.InsertMapSortExpression")
        if sorter.mapTypeExistsRecursively(key):
            key = sorter.insertMapSortRecursively(key)
        return self._object(f"{rules}.NormalizeFloatingNumbers").normalize(key)

    def is_binary_stable(self, data_type: JavaObject) -> bool:
        """False for strings whose collation takes different bytes for the same value."""
        utils = self._object("org.apache.spark.sql.catalyst.util.UnsafeRowUtils")
        return bool(utils.isBinaryStable(data_type))

    def is_replaceable(self, expression: JavaObject) -> bool:
        """True for functions that only stand for another expression, such as count_if."""
        trait = "org.apache.spark.sql.catalyst.expressions.RuntimeReplaceable"
        return bool(is_instance_of(self._gateway, expression, trait))

    def same_type(self, left: JavaObject, right: JavaObject) -> bool:
        types = self._object("org.apache.spark.sql.types.DataType")
        return bool(types.equalsIgnoreNullability(left, right))

    # Plans

    @cached_property
    def _project(self) -> Any:
        return self._class("org.apache.spark.sql.catalyst.plans.logical.Project")

    @cached_property
    def _dataset(self) -> JavaObject:
        return self._object("org.apache.spark.sql.classic.Dataset")

    def project(self, columns: JavaObject, child: JavaObject) -> JavaObject:
        """`columns`: a Scala sequence of named expressions."""
        return self._project(columns, child)

    def union(self, plans: Iterable[JavaObject]) -> JavaObject:
        """The rows of all plans, whose columns correspond by position."""
        return self._class("org.apache.spark.sql.catalyst.plans.logical.Union")(self.seq(plans), False, False)

    def aggregate(self, grouping: JavaObject, results: JavaObject, child: JavaObject) -> JavaObject:
        """`grouping`, `results`: Scala sequences of expressions."""
        plans = self._class("org.apache.spark.sql.catalyst.plans.logical")
        return plans.Aggregate(grouping, results, child, self.some(None))

    def limited_per_task(self, frame: DataFrame, rows: int) -> ClassicDataFrame:
        """At most so many rows of each task. Spark's own limit would bring them to one task first, and the code that
        Spark makes for it is new each time, so that it would be compiled for each batch."""
        if rows not in self._limits:
            self._limits[rows] = self._within_first(rows)
        plan = self.filtered(self._limits[rows], frame._jdf.queryExecution().analyzed())
        return self.frame(plan, frame.sparkSession)

    def _within_first(self, rows: int) -> JavaObject:
        """True for so many rows of each task."""
        expressions = self._expressions
        in_task = expressions.BitwiseAnd(
            expressions.MonotonicallyIncreasingID(), self.literal(_NUMBERS_WITHIN_A_TASK)
        )
        return expressions.LessThan(in_task, self.widened(self.literal(rows), self.long_type))

    def calls_python(self, frame: DataFrame) -> bool:
        """Whether functions of the user's in Python may be in the frame's plan."""
        patterns = self._object("org.apache.spark.sql.catalyst.trees.TreePattern")
        plan = frame._jdf.queryExecution().analyzed()
        return any(plan.containsPattern(pattern()) for pattern in (patterns.PYTHON_UDF, patterns.GENERATOR))

    def checked_lengths(
        self, frame: DataFrame, columns: Iterable[int], most_bytes: int, message: str
    ) -> ClassicDataFrame:
        """The same rows. One whose text or binary values in these columns are longer is an error with the message."""
        expressions, plan = self._expressions, frame._jdf.queryExecution().analyzed()
        output, none = plan.output(), self.literal(0)
        lengths = (
            expressions.Coalesce(self.seq([expressions.OctetLength(output.apply(column)), none]))
            for column in columns
        )
        too_long = expressions.GreaterThan(
            functools.reduce(expressions.Add, lengths), self.literal(most_bytes)
        )
        refused = expressions.Cast(
            expressions.RaiseError(self.literal(message)), self.boolean_type, self.some(None)
        )
        is_passed = expressions.If(too_long, refused, self.literal(True))
        return self.frame(self.filtered(is_passed, plan), frame.sparkSession)

    def own_frame(self, plan: JavaObject) -> ClassicDataFrame:
        """In the session whose plans are cut."""
        return self.frame(plan, self._session)

    def frame(self, plan: JavaObject, session: SparkSession) -> ClassicDataFrame:
        return ClassicDataFrame(self._dataset.ofRows(session._jsparkSession, plan), session)

    @cached_property
    def _python_utils(self) -> Any:
        return self._class("org.apache.spark.sql.api.python.PythonSQLUtils")

    def frame_of_arrow(
        self, batches: Iterable[bytes], schema: StructType, session: SparkSession
    ) -> ClassicDataFrame:
        """A frame of rows that the driver holds as Arrow messages. For small tables this is several times faster
        than `createDataFrame`, whose way leads through a file."""
        gathered = self._array_list()
        for batch in batches:
            gathered.add(batch)
        rows = self._to_scala.asScala(gathered).iterator()
        conf = session._jsparkSession.conf()
        before = conf.get(_LOCAL_RELATIONS_BELOW)
        # Spark would make a local relation of them, whose rows reach their task one by one as Java objects: twice
        # the time at 18,000 rows, and none saved at a thousand.
        conf.set(_LOCAL_RELATIONS_BELOW, "0")
        try:
            made = self._python_utils.toDataFrame(rows, schema.json(), session._jsparkSession)
        finally:
            conf.set(_LOCAL_RELATIONS_BELOW, before)
        return ClassicDataFrame(made, session)

    @cached_property
    def _logical_rdd(self) -> Any:
        return self._class("org.apache.spark.sql.execution.LogicalRDD")

    @cached_property
    def _one_task(self) -> JavaObject:
        return self._object(f"{_PARTITIONING}.SinglePartition")

    @cached_property
    def _anywhere(self) -> Any:
        return self._class(f"{_PARTITIONING}.UnknownPartitioning")

    def _clustering(self, keys: JavaObject, tasks: int) -> JavaObject:
        """Rows with the same keys are in one task, by a hash that Spark does not know. Of a plain hash partitioning
        Spark would believe that it can bring other rows to the same tasks; one that was coalesced it only takes for
        what it is. The number of partitions before that is one that no shuffle has, so that none is taken for it."""
        if tasks not in self._boundaries:
            ends = [*range(1, tasks), tasks + _NO_SHUFFLE]
            made = [self._boundary(start, end) for start, end in enumerate(ends)]
            self._boundaries[tasks] = self.seq(made)
        before = self._hash_partitioning(keys, tasks + _NO_SHUFFLE)
        return self._coalesced_partitioning(before, self._boundaries[tasks])

    @cached_property
    def _boundaries(self) -> dict[int, JavaObject]:
        """By number of tasks: batches ask for the same few again and again."""
        return {}

    @cached_property
    def _hash_partitioning(self) -> Any:
        return self._class(f"{_PARTITIONING}.HashPartitioning")

    @cached_property
    def _coalesced_partitioning(self) -> Any:
        return self._class(f"{_PARTITIONING}.CoalescedHashPartitioning")

    @cached_property
    def _boundary(self) -> Any:
        return self._class(f"{_PARTITIONING}.CoalescedBoundary")

    def leaf(self, frame: DataFrame, output: JavaObject, together: JavaObject | None = None) -> JavaObject:
        """A plan's leaf over the rows of a frame, under other names. `together`: rows with the same values of these
        columns lie in one task already, so that grouping by them stays within each task and needs no shuffle.
        `output` and `together`: Scala sequences of attributes."""
        rdd = _rows_of(frame)
        tasks = rdd.getNumPartitions()
        if tasks == 1:
            places = self._one_task
        else:
            places = self._anywhere(tasks) if together is None else self._clustering(together, tasks)
        return self._leaf(rdd, output, places, frame.sparkSession)

    def leaf_per_task(self, frame: DataFrame, output: JavaObject) -> JavaObject:
        """A leaf of which Spark believes that it is one task, whatever it is: what is above it gives the result of
        each task's rows."""
        return self._leaf(_rows_of(frame), output, self._one_task, frame.sparkSession)

    def _leaf(
        self, rdd: JavaObject, output: JavaObject, places: JavaObject, session: SparkSession
    ) -> JavaObject:
        nothing = self.some(None)
        return self._logical_rdd(
            output,
            rdd,
            places,
            self.nil,
            False,
            nothing,
            session._jsparkSession,
            nothing,
            nothing,
            False,
        )

    # Joins of streams

    @cached_property
    def _optimizer(self) -> JavaObject:
        return self._session._jsparkSession.sessionState().optimizer()

    def planned_join(self, join: JavaObject) -> PlannedJoin | None:
        """A join as Spark would run it; None where it would not run one by equal keys."""
        extract = self._object("org.apache.spark.sql.catalyst.planning.ExtractEquiJoinKeys")
        found = extract.unapply(self._written_out(join))
        node = self._optimizer.execute(join)
        while kind(node) != "Join":
            children = items(node.children())
            if len(children) != 1:
                return None
            node = children[0]
        optimized = extract.unapply(node)
        if not found.isDefined() or not optimized.isDefined():
            return None
        parts = found.get()
        others = self.conjuncts(parts._4().get()) if parts._4().isDefined() else []
        return PlannedJoin((items(parts._2()), items(parts._3())), others, optimized.get()._4(), node)

    def with_filters_joined(self, node: JavaObject) -> JavaObject:
        """A plan whose top are filters over an inner join of two streams, with what they ask for in the join's
        condition, where its bounds of time tell how long rows have to be kept; any other plan as it is."""
        return self._joined_with(node, []) or node

    def _joined_with(self, node: JavaObject, conditions: list[JavaObject]) -> JavaObject | None:
        match kind(node):
            case "Filter" if self._can_be_joined(node.condition()):
                return self._joined_with(node.child(), [*conditions, node.condition()])
            case "Project" if conditions:
                below = node.child().outputSet()
                if not all(condition.references().subsetOf(below) for condition in conditions):
                    return None
                joined = self._joined_with(node.child(), conditions)
                return None if joined is None else node.withNewChildren(self.seq([joined]))
            case "Join" if conditions and all(child.isStreaming() for child in items(node.children())):
                if str(node.joinType().sql()) != "INNER":
                    return None
                if node.condition().isDefined():
                    conditions = [*conditions, node.condition().get()]
                whole = functools.reduce(self.both, reversed(conditions))
                join = self._class("org.apache.spark.sql.catalyst.plans.logical.Join")
                return join(node.left(), node.right(), node.joinType(), self.some(whole), node.hint())
        return None

    def _can_be_joined(self, condition: JavaObject) -> bool:
        subquery = self._object("org.apache.spark.sql.catalyst.expressions.SubqueryExpression")
        return bool(
            condition.deterministic()
            and not subquery.hasSubquery(condition)
            and not _holds(condition, "PythonUDF")
        )

    def _written_out(self, join: JavaObject) -> JavaObject:
        """The join with what only stands for other expressions, such as BETWEEN, written out, where that needs no
        more columns."""
        plan = join
        for rule in ("ReplaceExpressions", "RewriteWithExpression"):
            plan = self._object(f"org.apache.spark.sql.catalyst.optimizer.{rule}").apply(plan)
        if kind(plan) != "Join" or not plan.left().outputSet().equals(join.left().outputSet()):
            return join
        return plan if plan.right().outputSet().equals(join.right().outputSet()) else join

    def conjuncts(self, condition: JavaObject) -> list[JavaObject]:
        if kind(condition) != "And":
            return [condition]
        return [*self.conjuncts(condition.left()), *self.conjuncts(condition.right())]

    def state_watermark_offset_us(self, planned: PlannedJoin, side: int) -> int | None:
        """By how much the time up to which Spark forgets a side's rows differs from the watermark; None: it keeps
        them. Spark's own rule, asked twice, because it takes any number in the condition for a time."""
        sides = [self._attribute_set(plan.output()) for plan in (planned.node.left(), planned.node.right())]
        helper = self._object("org.apache.spark.sql.catalyst.analysis.StreamingJoinHelper")
        offsets = set()
        for watermark_ms in (10**12, 2 * 10**12):
            found = helper.getStateValueWatermark(
                sides[side], sides[1 - side], planned.condition, self.some(watermark_ms)
            )
            if not found.isDefined():
                return None
            offsets.add((int(found.get()) - watermark_ms) * 1000)
        return offsets.pop() if len(offsets) == 1 else None

    def _attribute_set(self, attributes: JavaObject) -> JavaObject:
        return self._object("org.apache.spark.sql.catalyst.expressions.AttributeSet").apply(attributes)

    def as_long(self, expression: JavaObject) -> JavaObject | None:
        """A time in microseconds or a whole number as int64; None for other types."""
        match expression.dataType().typeName():
            case "timestamp" | "timestamp_ntz":
                return self.micros(expression)
            case "byte" | "short" | "integer" | "long":
                return self.widened(expression, self.long_type)
        return None

    def minus(self, expression: JavaObject, number: int) -> JavaObject:
        if number == 0:
            return expression
        return self._expressions.Subtract(expression, self.widened(self.literal(number), self.long_type))

    def filtered(self, condition: JavaObject, child: JavaObject) -> JavaObject:
        return self._class("org.apache.spark.sql.catalyst.plans.logical.Filter")(condition, child)

    def check_streaming(self, plan: JavaObject, output_mode: str) -> None:
        """Raises Spark's AnalysisException where Spark would not run the plan as a stream."""
        modes = self._class("org.apache.spark.sql.streaming.OutputMode")
        mode = getattr(modes, output_mode.capitalize())()
        self._object("org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker").checkForStreaming(
            plan, mode
        )

    def copies_rows(self, aggregate: JavaObject) -> bool:
        """Whether Spark computes an aggregate on copies of its rows: it does for DISTINCT values of several sets of
        columns, or with a FILTER clause."""
        rule = self._object("org.apache.spark.sql.catalyst.optimizer.RewriteDistinctAggregates")
        return not rule.apply(aggregate).fastEquals(aggregate)

    def before_own_cast(self, expression: JavaObject) -> JavaObject:
        """What an expression is without a cast that Spark put there, not the query."""
        if kind(expression) != "Cast":
            return expression
        users = self._object("org.apache.spark.sql.catalyst.expressions.Cast").USER_SPECIFIED_CAST()
        return expression if expression.getTagValue(users).isDefined() else expression.child()

    def flattened(self, plan: JavaObject) -> JavaObject:
        """The plan without names of views and tables, with WITH clauses put where they are used, with SELECT DISTINCT
        as the aggregate that Spark makes of it, and with no DISTINCT where it changes nothing, as in `max`."""
        inline = self._class("org.apache.spark.sql.catalyst.optimizer.InlineCTE")(True, False, False)
        plan = inline.apply(plan)
        plan = self._object("org.apache.spark.sql.catalyst.analysis.EliminateSubqueryAliases").apply(plan)
        plan = self._object("org.apache.spark.sql.catalyst.analysis.EliminateView").apply(plan)
        for rule in ("ReplaceDistinctWithAggregate", "EliminateDistinct"):
            plan = self._object(f"org.apache.spark.sql.catalyst.optimizer.{rule}").apply(plan)
        return plan


def _rows_of(frame: DataFrame) -> JavaObject:
    """Those that a frame stands for may be there without being planned again."""
    planned = frame._jdf.queryExecution()
    analyzed = planned.analyzed()
    return analyzed.rdd() if kind(analyzed) == "LogicalRDD" else planned.toRdd()


def _holds(expression: JavaObject, name: str) -> bool:
    return kind(expression) == name or any(_holds(child, name) for child in items(expression.children()))


def rebuild(
    catalyst: Catalyst, expression: JavaObject, replace: Callable[[JavaObject], JavaObject | None]
) -> JavaObject:
    """An expression, or a plan, with the topmost subtrees for which `replace` answers exchanged for the answers."""
    answer = replace(expression)
    if answer is not None:
        return answer
    children = items(expression.children())
    rebuilt = [rebuild(catalyst, child, replace) for child in children]
    if all(new is old for new, old in zip(rebuilt, children, strict=True)):
        return expression
    return expression.withNewChildren(catalyst.seq(rebuilt))
