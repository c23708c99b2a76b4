"""Safeguards of the Lambda functions: ingest and requests, and the controller that keeps one run of a pipeline."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant, Sim, by_tests

_POSITIONS: Final = "brokerless/ingest/positions.py"
_INGEST: Final = "brokerless/ingest/batches.py"
_PLAN: Final = "brokerless/ingest/plan.py"
_HTTP: Final = "brokerless/ingest/http.py"
_EVENTS: Final = "lambdas/ingest/events.py"
_HANDLER: Final = "lambdas/ingest/handler.py"
_CONTROLLER: Final = "brokerless/aws/controller/controller.py"
_DECISIONS: Final = "brokerless/aws/controller/decisions.py"
_RECORDS: Final = "brokerless/aws/controller/states.py"
_TOPICS: Final = "brokerless/aws/topics_resource.py"

_LETTERS: Final = (
    "        for (topic, ordered), rows in rejected.items():\n"
    "            try:\n"
    "                self._write_dead_letters(batch, topic, rows, ordered=ordered, result=result)\n"
    "            except BrokerlessError as error:\n"
    "                result.errors.append(error)\n"
    "                failed.update(rows)\n"
)
_ROWS: Final = (
    "        stale: list[int] = []\n"
    "        for (topic, ordered_topic, partition), rows in plan.rows.items():\n"
    "            try:\n"
    "                self._write_rows(batch, topic, ordered_topic, partition, rows, result=result)\n"
    "            except BrokerlessError as error:\n"
    "                result.errors.append(error)\n"
    "                failed.update(rows)\n"
    "                if isinstance(error, TopicChanged | TopicNotFound):\n"
    "                    self._forget(topic)\n"
    "                    stale += rows\n"
)

_INGESTED: Final = (
    Mutant(
        "positions are compared and set",
        _POSITIONS,
        "            expect |= txns_of(source, known[source])\n",
        "",
        "Two functions that were given the same batch of a stream both write it, or stop each other for ever.",
        by_tests("unit/ingest/test_positions", "test_of_two_functions_with_the_same_batch_one_writes_it"),
    ),
    Mutant(
        "what is not beyond the known position is skipped",
        _POSITIONS,
        "        if row.position > reached[row.source]:",
        "        if True:",
        "What Kinesis, Kafka or a FIFO queue delivers again is written again.",
        Sim(),
    ),
    Mutant(
        "rows of a source are written in its order",
        _POSITIONS,
        "    ordered = sorted(rows, key=lambda row: (row.source, row.position))",
        "    ordered = list(rows)",
        "A message behind a later one of its batch is taken for a repetition, and is lost.",
        by_tests("unit/ingest/test_positions", "test_rows_of_a_source_are_written_in_its_order_and_a_position_once"),
    ),
    Mutant(
        "ingest commits dead letters first",
        _INGEST,
        _LETTERS + _ROWS,
        _ROWS + _LETTERS,
        "A function that is killed in between loses the batch's dead letters of a queue.",
        by_tests("unit/ingest/test_batches", "test_dead_letters_are_committed_first"),
    ),
    Mutant(
        "behind a failed message of an ordered source nothing is written",
        _INGEST,
        "        plan.stop_behind_failed(batch, pending)\n",
        "",
        "The failed message is taken for a repetition when it comes again, and is lost.",
        by_tests("unit/ingest/test_batches", "test_an_ordered_source_stops_at_the_first_failure"),
    ),
    Mutant(
        "what lies behind a failed message is delivered again, too",
        _PLAN,
        "        if number in failed or (message.position is not None and message.source in stopped):",
        "        if number in failed:",
        "The source goes on without messages that were never written.",
        by_tests("unit/ingest/test_batches", "test_an_ordered_source_stops_at_the_first_failure"),
    ),
    Mutant(
        "a source keeps to one partition",
        _PLAN,
        "        return partition_of(source, self._partitions)",
        "        return len(source) % self._partitions",
        "Its positions stand in another table than where they are looked for, and messages are there twice.",
        by_tests("unit/ingest/test_batches", "test_sources_keep_to_a_partition_each"),
    ),
    Mutant(
        "what the store refuses now is delivered again",
        _INGEST,
        "                result.errors.append(error)\n"
        "                failed.update(rows)\n                if isinstance",
        "                result.errors.append(error)\n                if isinstance",
        "While S3 is down for a minute, the queue's messages are deleted.",
        by_tests("unit/ingest/test_batches", "test_what_the_store_refuses_is_delivered_again"),
    ),
    Mutant(
        "before dead letters are written, the schema is looked at again",
        _INGEST,
        "            if plan.dead_letters and self._unconfirmed(plan):",
        "            if False:",
        "Good messages of a new schema become dead letters by the old one.",
        by_tests("unit/ingest/test_batches", "test_a_column_that_is_new_makes_no_dead_letters"),
    ),
    Mutant(
        "before a batch is skipped, the log is asked",
        _POSITIONS,
        "            log.confirm()\n",
        "",
        "What is replayed into a topic that was created anew is reported as skipped, and is nowhere.",
        by_tests("unit/ingest/test_positions", "test_nothing_is_skipped_of_a_topic_that_is_gone"),
    ),
    Mutant(
        "a log that is opened late is of the topic that was opened",
        _PLAN,
        "            self._logs[0].confirm()\n",
        "",
        "A function that is warm over a change of partitions writes where nobody looks for its positions.",
        by_tests(
            "unit/ingest/test_batches",
            "test_a_topic_created_again_with_other_partitions_has_each_message_where_it_belongs",
        ),
    ),
    Mutant(
        "before a request is refused for its columns, the log is asked",
        _HTTP,
        "                producer.confirm()  # the topic may have other columns by now\n",
        "                pass\n",
        "Each message with a column that is new gets a 400 for as long as the function is warm.",
        by_tests("unit/ingest/test_http", "test_a_column_that_is_new_is_known_to_the_next_request"),
    ),
    Mutant(
        "producer ids from outside have a name space of their caller",
        _HTTP,
        "        namespace = None if producer_id is None else namespace_of(request.caller)\n",
        "        namespace = None\n",
        "A client fences a producer of the library by its id, and what that sends next counts as there already.",
        by_tests(
            "unit/ingest/test_http",
            "test_a_request_cannot_fence_a_producer_of_the_library",
            "test_callers_with_the_same_producer_id_do_not_hinder_each_other",
        ),
    ),
    Mutant(
        "a Kinesis message has its position",
        _EVENTS,
        'f"kinesis/{stream}/{shard}", number, int(number))',
        'f"kinesis/{stream}/{shard}", number)',
        "A shard that is delivered again is written again.",
        by_tests("integration/test_lambda_ingest", "test_a_shard_that_is_cut_otherwise_when_it_is_delivered_again"),
    ),
    Mutant(
        "a Kafka message has its position",
        _EVENTS,
        "        yield SourceMessage(body, source, item, offset)",
        "        yield SourceMessage(body, source, item)",
        "A Kafka partition that is delivered again is written again.",
        by_tests("integration/test_lambda_ingest", "test_kafka_partitions_come_in_one_event"),
    ),
    Mutant(
        "a FIFO queue's message has its position, by its group",
        _EVENTS,
        '            source, position = f"{source}/{record.attributes.message_group_id}", int(number)',
        '            source = f"{source}/{record.attributes.message_group_id}"',
        "A message group that is delivered again is written again.",
        by_tests("integration/test_lambda_ingest", "test_a_fifo_queue_delivers_again_and_nothing_is_there_twice"),
    ),
    Mutant(
        "each group of a FIFO queue has locations of its own",
        _EVENTS,
        '            source, position = f"{source}/{record.attributes.message_group_id}", int(number)',
        '            source, position = f"{source}/", int(number)',
        "Messages of one group are taken for repetitions of another's, and are lost.",
        by_tests("integration/test_lambda_ingest", "test_a_fifo_queue_delivers_again_and_nothing_is_there_twice"),
    ),
    Mutant(
        "the locations of a shard are those of the stream, whoever reads it",
        _EVENTS,
        '        stream = record.event_source_arn.partition("/consumer/")[0]',
        "        stream = record.event_source_arn",
        "After a change to enhanced fan-out a shard is written from its beginning once more.",
        by_tests("integration/test_lambda_ingest", "test_shards_do_not_mix_and_fan_out_does_not_matter"),
    ),
    Mutant(
        "a stream is asked for again from its first failed message",
        _EVENTS,
        "                first.setdefault(message.source, message)",
        "                first[message.source] = message",
        "The messages before the last failed one are never delivered again.",
        by_tests("integration/test_lambda_ingest", "test_the_first_that_failed_is_named_for_each_partition"),
    ),
    Mutant(
        "a batch of which nothing was taken fails the function",
        _HANDLER,
        "    if result.failed and (not batch.partial or len(result.failed) == len(batch.messages)):",
        "    if False:",
        "SNS and EventBridge know no partial answer: their messages count as taken, and are lost.",
        by_tests(
            "integration/test_lambda_ingest",
            "test_a_batch_that_failed_as_a_whole_fails_the_function",
            "test_sns_and_eventbridge_call_the_function_itself",
        ),
    ),
    Mutant(
        "a request's sequence is its producer's",
        _HTTP,
        "            return producer.send(table, sequence=sequence), producer.conflicts - before",
        "            return producer.send(table), producer.conflicts - before",
        "A client that repeats a request writes its messages twice.",
        by_tests("unit/ingest/test_http", "test_a_request_that_is_repeated_is_written_once"),
    ),
    Mutant(
        "an unknown outcome is told to the client",
        _HTTP,
        "            unknown=True,\n",
        "            unknown=False,\n",
        "The client sends under a new sequence what may have been written, and it is there twice.",
        by_tests("unit/ingest/test_http", "test_an_unknown_outcome_is_said_and_the_repetition_settles_it"),
    ),
)

_CONTROLLED: Final = (
    Mutant(
        "the controller's record is compared and set",
        _RECORDS,
        "Body=body, IfMatch=revision)",
        "Body=body)",
        "Two calls of the controller overwrite each other's notes, and two runs are started.",
        by_tests("integration/test_controller_moto", "test_of_two_that_read_the_same_record_one_can_change_it"),
    ),
    Mutant(
        "the controller's record is created once",
        _RECORDS,
        'Body=body, IfNoneMatch="*")',
        "Body=body)",
        "The same, for a pipeline's first deployment.",
        by_tests("integration/test_controller_moto", "test_of_two_that_read_the_same_record_one_can_change_it"),
    ),
    Mutant(
        "a record's PUT that meets itself has succeeded",
        _RECORDS,
        "            if found is not None and found[0] == body:\n                return True\n",
        "",
        "After a lost answer the controller believes that another call works, and stands still.",
        by_tests("integration/test_controller_moto", "test_a_put_that_meets_what_it_wrote_itself_has_succeeded"),
    ),
    Mutant(
        "a start is noted before it is asked for",
        _CONTROLLER,
        "        if record != before and not self._states.save(record, revision=stored.revision):\n",
        "        if record != before and not self._states.save(record, revision=stored.revision) and False:\n",
        "Of two calls at once both start a run, and two pipelines fence each other in turn.",
        by_tests("unit/aws/test_controller", "test_of_two_calls_at_once_one_starts_the_run"),
    ),
    Mutant(
        "a start without answer is not asked for again at once",
        _DECISIONS,
        "    if now_us < pending.asked_us + _us(CALL_S):\n",
        "    if False:\n",
        "While one call still waits for its answer, the next one starts a second run.",
        by_tests(
            "unit/aws/test_controller", "test_a_start_without_answer_is_not_asked_for_again_while_the_call_may_last"
        ),
    ),
    Mutant(
        "another start waits until an unanswered one cannot arrive",
        _DECISIONS,
        '    if in_doubt:\n        return Decision(record, "WAITING"',
        '    if False:\n        return Decision(record, "WAITING"',
        "After a deployment the old version's run appears beside the new one.",
        by_tests(
            "unit/aws/test_controller", "test_a_deployment_over_a_start_without_answer_waits_until_it_cannot_arrive"
        ),
    ),
    Mutant(
        "a deletion waits until an unanswered start cannot arrive",
        _DECISIONS,
        '    if in_doubt:\n        return Decision(record, "STOPPING"',
        '    if False:\n        return Decision(record, "STOPPING"',
        "After a stack is gone a run appears that nobody stops or pays attention to.",
        by_tests("unit/aws/test_controller", "test_a_deletion_while_starting_waits_for_a_start_that_may_still_arrive"),
    ),
    Mutant(
        "a run that lists do not show yet counts as alive",
        _DECISIONS,
        "    young = now_us < ref.since_us + _us(DOUBT_S)\n",
        "    young = False\n",
        "A second run is started while the first one comes up.",
        by_tests("unit/aws/test_controller", "test_a_run_that_lists_do_not_show_yet_is_not_started_twice"),
    ),
    Mutant(
        "of two runs the older one is stopped",
        _DECISIONS,
        "    if undesired:\n",
        "    if False:\n",
        "Two runs of a pipeline compete for good, each paid for.",
        by_tests("unit/aws/test_controller", "test_of_two_runs_the_older_one_is_stopped"),
    ),
    Mutant(
        "the successor of an expired run is left to Glue",
        _DECISIONS,
        "    return replace(record, expired=newest.id, successor_until_us=now_us + _us(SUCCESSOR_S))",
        "    return replace(record, expired=newest.id)",
        "Once a week there are two runs.",
        by_tests("unit/aws/test_controller", "test_glues_weekly_restart_is_left_to_glue"),
    ),
    Mutant(
        "too many failures in an hour end the restarts",
        _DECISIONS,
        "    elif len(failures) >= desired.max_failures_per_hour:",
        "    elif False:",
        "A pipeline that cannot run is started, and paid for, for ever.",
        by_tests(
            "unit/aws/test_controller", "test_the_controller_gives_up_after_too_many_failures_in_an_hour_and_stays_so"
        ),
    ),
    Mutant(
        "one pipeline's error does not stop the controller",
        _CONTROLLER,
        "            except Exception as error:\n",
        "            except ZeroDivisionError as error:\n",
        "One broken record leaves all other pipelines without their controller.",
        by_tests(
            "unit/aws/test_controller", "test_one_pipeline_that_cannot_be_reconciled_does_not_keep_the_others_from_it"
        ),
    ),
    Mutant(
        "a stack that is deleted leaves its topics",
        _TOPICS,
        '    if kind == "Delete":\n        return answer, Outcome((), _names(event["ResourceProperties"]))\n',
        '    if kind == "Delete":\n'
        "        from brokerless.topics import delete_topic\n\n"
        '        for name in _names(event["ResourceProperties"]):\n'
        "            delete_topic(store, name, clock=clock)\n"
        '        return answer, Outcome((), _names(event["ResourceProperties"]))\n',
        "A roll-back takes every message with it.",
        by_tests("unit/aws/test_topics_resource", "test_delete_deletes_nothing"),
    ),
    Mutant(
        "the log is asked before a message becomes a dead letter",
        "brokerless/ingest/batches.py",
        "ordered_topic.confirm({partition for _, its, partition in plan.rows if its is ordered_topic})",
        "pass",
        "The same, for messages of a stream.",
        Sim(),
    ),
)

MUTANTS: Final = _INGESTED + _CONTROLLED
