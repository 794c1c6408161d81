"""Which test tries which request: the page of requests that have broken other servers and proxies, bullet by bullet.

Each row names a request of the page and the tests that try it, with its neighbours. Short names are in this folder;
others are paths below `tests/`. `test_table.py` keeps the table true.
"""

from __future__ import annotations

Rows = dict[str, str]
"""What is tried, and by which tests, separated by blanks."""

KEYS_AND_PATHS: Rows = {
    "GET /b/foo%27bar, PUT /b/a%3Ab: escapes are not re-encoded": (
        "test_keys_and_paths::test_a_key_goes_upstream_as_it_was_spelt"
        " test_keys_and_paths::test_odd_keys_as_at_the_store"
    ),
    "the signature covers escapes as sent": (
        "s3/test_sigv4_canonical::test_spellings_of_one_target s3/test_sigv4_canonical::test_targets_that_differ"
        " s3/test_sigv4::test_botocore_signed_headers"
    ),
    "virtual-host style PUT //foo": (
        "server/test_clients::test_virtual_host_style test_keys_and_paths::test_a_key_goes_upstream_as_it_was_spelt"
    ),
    "GET http://host/b/k (absolute form)": (
        "test_keys_and_paths::test_an_absolute_target_is_read_like_any_other s3/test_request::test_absolute_form"
        " server/test_http::test_the_target_is_taken_as_it_was_sent"
    ),
    "PUT /b//foo, /b/123//456, /b/x/., /b/foo/../key: part of the key": (
        "test_keys_and_paths::test_a_key_goes_upstream_as_it_was_spelt"
        " test_keys_and_paths::test_odd_keys_as_at_the_store"
        " s3/test_request::test_path_style"
    ),
    "GET /b/10%2B2.jpg, GET /b/q%3Fx": (
        "test_keys_and_paths::test_odd_keys_as_at_the_store s3/test_request::test_path_style"
    ),
    "1025 bytes: KeyTooLongError; 1024 bytes of UTF-8 work": (
        "test_keys_and_paths::test_the_longest_key s3/test_request::test_key_length"
        " server/test_s3_bad_input::test_a_key_of_1024_bytes_works"
    ),
    "Host s3.example.com: a first label is a bucket only under the suffix": (
        "s3/test_request::test_virtual_host_style server/test_clients::test_virtual_host_style"
    ),
    "a bucket alone, and what is not there": "test_keys_and_paths::test_targets_without_an_object_as_at_the_store",
}

SIGNATURE: Rows = {
    "x-amz-meta-d: a  b": (
        "test_signature::test_a_value_is_kept_as_it_was_sent test_signature::test_metadata_as_at_the_store"
        " s3/test_sigv4_canonical::test_canonical_values"
    ),
    "two x-amz-meta-a lines join with a comma": (
        "test_signature::test_a_value_is_kept_as_it_was_sent s3/test_forward::test_doubles_are_joined"
    ),
    "GET /b/k?x, ?prefix=a%20b&delimiter=%2F": (
        "test_signature::test_a_query_signs_in_its_canonical_form_and_goes_on_as_it_came"
        " s3/test_sigv4_canonical::test_sorting_is_by_encoded_name"
    ),
    "a URL signed for host, used with host:80; X-Forwarded-Port": (
        "test_signature::test_a_default_port_and_what_proxies_say_change_nothing"
        " s3/test_sigv4_canonical::test_default_port s3/test_sigv4_canonical::test_other_port"
    ),
    "SignedHeaders with accept-encoding": "test_signature::test_a_signed_accept_encoding_arrives_as_signed",
    "transfer-encoding among SignedHeaders": "test_signature::test_signed_headers_of_the_hop",
    "x-amz-meta-t with non-ASCII bytes": (
        "test_signature::test_a_value_is_kept_as_it_was_sent test_signature::test_metadata_as_at_the_store"
        " server/test_http::test_metadata_that_is_no_text_passes_byte_for_byte"
    ),
    "a control character in metadata: 400": "test_signature::test_a_control_character_in_a_value",
    "presigned PUT plus an unsigned x-amz-copy-source; any unsigned x-amz-*": (
        "test_signature::test_an_unsigned_amz_header_is_refused"
        " test_signature::test_headers_that_proxies_add_may_be_unsigned"
        " server/test_clients::test_a_presigned_url_that_is_not_good"
    ),
    "STREAMING-UNSIGNED-PAYLOAD-TRAILER with a bad signature, or in the query only": (
        "test_signature::test_an_unsigned_trailer_needs_a_signature s3/test_claim::test_presigned_chunks"
    ),
    "X-Amz-Expires=1 after 2 s, 604801, 604800 and 16 minutes old": (
        "test_signature::test_a_presigned_url_of_one_second server/test_clients::test_a_presigned_url_that_is_not_good"
        " server/test_clients::test_a_presigned_url_lives_for_a_week s3/test_sigv4_refusals::test_presigned_for_a_week"
    ),
    "16 minutes off: RequestTimeTooSkewed with ServerTime": (
        "test_signature::test_any_request_whose_clock_is_off test_signature::test_a_skewed_upload_is_not_read"
        " server/test_clients::test_a_clock_that_is_off"
    ),
}

EXPECT_CHUNKS_CHECKSUMS: Rows = {
    "Expect with a bad signature or a stale token: at once, no 100": (
        "server/test_http::test_a_refused_expectation_is_answered_at_once_and_closed"
        " server/test_http::test_continue_comes_after_admission"
    ),
    "Expect, chunked transfer coding and aws-chunked together": (
        "test_payloads::test_every_mode_in_every_framing test_payloads::test_every_mode_of_a_part_in_every_framing"
        " server/test_body::test_expect_and_both_kinds_of_chunks_together"
    ),
    "signed chunks inside HTTP chunks, cut at every byte": (
        "test_payloads::test_http_chunks_may_end_at_every_byte test_payloads::test_packets_may_end_at_any_byte"
        " test_payloads::test_every_algorithm_cut_at_every_byte test_payloads::test_a_body_that_ends_too_early"
        " test_payloads::test_a_body_with_any_byte_changed s3/test_payload::test_right_bodies_cut_at_every_byte"
    ),
    "second chunk's signature forged: nothing visible": (
        "test_payloads::test_a_forged_second_chunk server/test_body::test_a_broken_promise_leaves_nothing_behind"
        " s3/test_chunked::test_every_signature_and_every_signed_byte_counts"
    ),
    "x-amz-decoded-content-length larger or smaller": "test_payloads::test_a_decoded_length_that_is_not_what_comes",
    "trailing checksum wrong, missing, or under an empty name": (
        "test_payloads::test_a_wrong_trailing_checksum test_payloads::test_a_trailer_that_is_not_the_announced_one"
        " s3/test_chunked::test_trailers_that_were_not_announced"
        " s3/test_chunked::test_signed_trailers_that_were_not_announced"
    ),
    "trailing checksum right: stored, and shown by HEAD": (
        "test_checksums::test_a_trailing_checksum_is_shown_by_head"
        " test_checksums::test_a_trailing_checksum_of_a_part_is_kept"
        " test_checksums::test_a_checksum_in_the_head_is_the_stores_matter"
        " end_to_end/test_checksums::test_a_trailing_checksum_is_kept"
    ),
    "a store that knows no trailers, or not this one": (
        "test_checksums::test_what_the_store_cannot_keep_is_verified_and_dropped"
        " test_checksums::test_a_small_bodys_trailer_goes_upstream_as_a_header"
        " test_checksums::test_a_store_without_trailers_is_not_asked_for_them"
        " test_checksums::test_a_streamed_bodys_trailer_follows_it_where_that_is_proved"
    ),
    "documents, in every payload mode and framing": (
        "test_documents::test_every_document_in_every_mode_and_framing"
        " test_documents::test_completes_and_batches_in_every_mode_and_framing"
        " test_documents::test_a_document_with_a_wrong_checksum"
    ),
    "Content-Encoding: aws-chunked,gzip": (
        "test_payloads::test_aws_chunked_leaves_the_content_encoding s3/test_forward::test_content_encoding"
    ),
    "zero bytes in every payload mode": (
        "test_payloads::test_every_mode_in_every_framing server/test_body::test_every_way_to_send_a_body"
    ),
    "a doubled zero chunk at the end": "test_payloads::test_a_doubled_zero_chunk",
    "chunked transfer coding and no length at all": "test_payloads::test_a_body_whose_length_nobody_knows",
    "Content-Length and Transfer-Encoding": (
        "test_payloads::test_two_lengths server/test_http::test_what_is_not_http_is_refused_in_s3s_form"
    ),
    "Content-Encoding: gzip passes byte for byte": (
        "test_reads_and_conditions::test_a_packed_object_as_at_the_store"
        " server/test_http::test_compressed_bodies_pass_byte_for_byte"
    ),
}

READS_AND_CONDITIONS: Rows = {
    "HEAD keeps Content-Length, also 0; 304 keeps ETag": (
        "test_reads_and_conditions::test_conditional_reads_as_at_the_store"
        " test_reads_and_conditions::test_reads_with_a_query_as_at_the_store"
        " server/test_http::test_head_and_304_have_no_body"
    ),
    "Range in all its forms, also of an empty object": "test_reads_and_conditions::test_ranges_as_at_the_store",
    "the client's own conditions on PUT, Complete, Copy, DELETE under the fence": (
        "test_reads_and_conditions::test_a_clients_own_condition_means_what_it_means_on_s3"
        " test_reads_and_conditions::test_conditional_writes_as_at_the_store"
        " test_reads_and_conditions::test_a_stale_token_is_told_before_the_condition"
        " service/test_clients_conditions::test_the_head_is_judged_before_the_clients_own_condition"
    ),
}

MULTIPART_LISTS_COPIES_FORMS: Rows = {
    "Complete sent twice": (
        "test_multipart::test_a_complete_sent_twice"
        " service/test_uploads::test_a_repeated_complete_after_the_hand_over_is_refused_with_unknown"
    ),
    "Complete answered with 200, spaces and <Error>": (
        "test_multipart::test_a_complete_that_fails_in_its_200"
        " test_multipart::test_a_complete_that_fails_in_its_200_and_has_succeeded"
        " service/test_uploads::test_a_200_without_an_outcome_leaves_a_complete_in_doubt"
    ),
    "parts in wrong order, under 5 MiB in the middle": (
        "test_multipart::test_completes_that_s3_refuses test_multipart::test_part_numbers_that_are_none"
    ),
    "key a&b< in every XML that echoes it": (
        "test_multipart::test_every_xml_that_echoes_a_key_is_well_formed s3/test_xml::test_results_are_well_formed"
    ),
    "DeleteObjects with a CRC32 and no Content-MD5": "test_batches_and_lists::test_the_digest_of_a_batch",
    "DeleteObjects with 1001 keys, with <Key>a&#x10;</Key>": (
        "test_batches_and_lists::test_batches_that_are_refused s3/test_xml::test_malformed_batches"
    ),
    "DeleteObjects, some keys fenced and some not": (
        "test_batches_and_lists::test_a_batch_of_a_thousand_some_fenced_and_some_not"
        " service/test_batches::test_what_is_refused_is_its_own_error_and_the_rest_goes_through"
    ),
    "lists with encoding-type=url and odd keys": "test_batches_and_lists::test_lists_as_at_the_store",
    "V1 with delimiter and max-keys=2": (
        "test_batches_and_lists::test_pages_as_at_the_store"
        " test_batches_and_lists::test_odd_parameters_of_lists_as_at_the_store"
    ),
    "x-amz-copy-source: b/a%7B%2Bb and with raw non-ASCII": (
        "test_copies_and_forms::test_copy_sources_as_at_the_store service/test_copies::test_a_copy_source_in_its_forms"
    ),
    "self-copy with REPLACE; x-amz-tagging-directive": (
        "test_copies_and_forms::test_directives_of_copies_as_at_the_store"
        " test_copies_and_forms::test_a_directive_that_is_none"
    ),
    "browser form POST": (
        "test_copies_and_forms::test_a_browsers_form_is_never_passed"
        " server/test_s3_refusals::test_a_browsers_form_is_not_implemented"
    ),
    "unsigned OPTIONS preflight": "test_copies_and_forms::test_a_preflight_needs_no_signature",
}

TRANSPORT: Rows = {
    "the upstream closes a pooled connection": (
        "test_upstream_connections::test_a_pooled_connection_that_the_store_has_closed"
        " test_upstream_connections::test_a_pooled_connection_that_the_store_closes_under_a_write"
        " test_upstream_connections::test_a_pooled_connection_that_the_store_closes_under_a_read"
    ),
    "the upstream resets, answers 500 in mid-PUT": (
        "test_upstream_connections::test_a_store_that_fails_in_mid_put"
        " test_upstream_connections::test_a_store_that_refuses_in_mid_put"
    ),
    "the upstream never answers": (
        "test_upstream_connections::test_a_store_that_never_answers"
        " test_upstream_connections::test_a_store_that_is_not_there"
    ),
    "the client closes in mid-PUT, sends less than Content-Length": (
        "server/test_body::test_a_client_that_goes_away_in_mid_body_leaves_nothing"
    ),
    "the client sends one header byte every 10 s": (
        "server/test_http::test_a_head_that_does_not_end_is_cut_off"
        " server/test_http::test_a_slow_head_on_a_used_connection_is_cut_off"
    ),
    "the client pauses 31 s in its body": (
        "test_transport::test_a_pause_in_a_body test_transport::test_a_body_in_drops"
        " server/test_body::test_a_body_that_stalls_is_given_up"
    ),
    "the client does not read": (
        "test_transport::test_no_answer_lies_further_ahead_than_its_client_reads"
        " server/test_body::test_a_client_that_stops_reading_is_given_up"
    ),
    "1 GiB PUT with a bad key and no Expect": (
        "test_transport::test_a_gigabyte_under_a_bad_key"
        " server/test_http::test_a_client_that_reads_last_reads_its_refusal"
    ),
    "headers of 9 KB; 64 KB of headers": (
        "server/test_http::test_a_head_of_64_kib_is_too_large_and_one_field_of_9_kib_is_not"
    ),
    "CR in a header value": "server/test_http::test_what_is_not_http_is_refused_in_s3s_form",
    "LF in a chunk extension": "server/test_body::test_chunks_that_are_no_chunks",
    "DOCTYPE in an XML body": (
        "test_transport::test_a_doctype_in_a_document test_transport::test_a_doctype_in_the_completion_of_an_upload"
        " test_batches_and_lists::test_batches_that_are_refused s3/test_xml::test_a_doctype_is_refused"
    ),
    "XML of 2 MiB": "test_transport::test_a_document_of_two_mebibytes",
    "SIGTERM in mid-GET and mid-PUT": (
        "test_transport::test_sigterm_lets_a_running_download_end"
        " cli/test_serve::test_sigterm_lets_a_running_upload_end"
    ),
    "logs hold no secret": "server/test_secrets::test_the_log_holds_no_secret",
}

SECTIONS: dict[str, Rows] = {
    "Keys and paths": KEYS_AND_PATHS,
    "Signature": SIGNATURE,
    "Expect, chunks, checksums": EXPECT_CHUNKS_CHECKSUMS,
    "GET, HEAD, conditions": READS_AND_CONDITIONS,
    "Multipart, lists, deletes, copies, forms": MULTIPART_LISTS_COPIES_FORMS,
    "Transport": TRANSPORT,
}
