"""Which tests hold which of the sixty cases: small inputs with right answers, each from a fault that people report.

``tests/unit/test_cases_map.py`` checks that the table is true. A test of a case has the number in its name; a few older
ones stand here under another.
"""

from __future__ import annotations

NUM_CASES = 60

#: Cases without a test of their own yet, and the issue that brings it.
PENDING: dict[int, int] = {}

#: Tests by case, as ``file::test``, files relative to ``tests``.
CASES: dict[int, tuple[str, ...]] = {
    1: ("parallel/ranked/test_toy_cases.py::test_case_1_ten_samples_batch_two_makes_six_steps",),
    2: ("parallel/ranked/test_toy_cases.py::test_case_2_seven_samples_are_evaluated_each_epoch_once",),
    3: ("parallel/ranked/test_exactness.py::test_case_3_last_sample_of_one_rank_counts_in_full",),
    4: (
        "parallel/ranked/test_exactness.py::test_case_4_sparse_gradients_with_an_empty_share_equal_one_process",
        "parallel/ranked/test_exactness.py::test_case_4_sparse_gradients_have_the_momentum_of_dense_ones",
        "parallel/ranked/test_exactness.py::test_case_4_sparse_gradients_add_over_passes",
        "parallel/ranked/test_exactness_torch.py::test_case_4_optimizer_that_cannot_take_reduced_gradients_is_refused",
    ),
    5: (
        "parallel/ranked/test_exactness.py::test_case_5_stream_that_ends_earlier_on_one_rank_ends_its_epochs_together",
    ),
    6: (
        "parallel/ranked/test_toy_cases.py::test_case_6_fewer_training_samples_than_ranks_train_with_empty_shares",
        "parallel/ranked/test_toy_cases.py::test_case_6_fewer_evaluation_samples_than_ranks_give_their_mean",
        "parallel/ranked/test_toy_cases.py::test_case_6_no_samples_are_refused_on_all_ranks",
    ),
    7: (
        "parallel/test_cases_failures.py::test_case_7_root_that_sleeps_in_a_callback_ends_the_job_and_is_named_with_its_line",
        "parallel/test_cases_failures.py::test_case_7_root_that_sleeps_for_less_than_the_limit_is_waited_for",
    ),
    8: (
        "parallel/ranked/test_resume_cases.py::test_case_8_patience_of_a_continued_run_ends_both_ranks_at_the_same_epoch",
        "parallel/ranked/test_exactness.py::test_case_27_early_stopping_follows_the_global_value",
    ),
    9: ("parallel/test_cases_resume.py::test_case_9_finished_job_has_nothing_to_do_and_leaves_its_files_alone",),
    10: (
        "parallel/ranked/test_toy_cases.py::test_case_10_rank_dependent_data_gives_the_mean_gradient",
        "parallel/ranked/test_toy_cases.py::test_case_10_without_reduction_ranks_differ_and_the_replica_check_says_so",
        "parallel/ranked/test_toy_models.py::test_case_10_in_eager_mode_gives_the_mean_gradient",
    ),
    11: (
        "parallel/ranked/test_resume_cases.py::test_case_11_three_more_steps_after_loading_and_wrapping_again_are_the_uninterrupted_run",
        "parallel/ranked/test_resume_cases.py::test_case_11_weights_without_their_slots_would_end_elsewhere",
        "parallel/ranked/test_resume_cases.py::test_case_11_state_that_the_root_alone_loads_and_does_not_share_is_noticed",
    ),
    12: ("parallel/test_cases.py::test_case_12_clipping_keeps_one_reduction_per_parameter_and_step",),
    13: (
        "parallel/ranked/test_toy_cases.py::test_case_13_zero_steps_save_the_weights_of_the_root",
        "parallel/ranked/test_toy_cases.py::test_case_13_model_built_at_the_first_batch_starts_from_the_root",
        "parallel/ranked/test_toy_cases.py::test_case_13_ranks_born_alike_would_prove_nothing",
    ),
    14: (
        "parallel/ranked/test_resume_cases.py::test_case_14_rate_of_the_script_follows_the_schedule_for_the_samples_seen",
    ),
    15: (
        "parallel/ranked/test_resume_cases.py::test_case_15_slots_of_canonical_optimizers_come_back_on_all_ranks",
        "parallel/ranked/test_resume_cases_tensorflow.py::test_case_15_slots_of_native_optimizers_come_back_on_all_ranks",
        "parallel/ranked/test_resume_cases_torch.py::test_case_15_slots_of_native_optimizers_come_back_on_all_ranks",
        "parallel/ranked/test_resume_cases_torch.py::test_case_15_native_optimizers_walk_as_they_do_without_horovod",
        "parallel/ranked/test_resume_cases_torch.py::test_case_15_slots_of_one_parameter_alone_come_back",
        "parallel/ranked/test_exactness_torch.py::test_case_4_optimizer_that_cannot_take_reduced_gradients_is_refused",
    ),
    16: (
        "parallel/ranked/test_resume_cases.py::test_case_16_frozen_integer_and_bool_tensors_come_back_unchanged",
        "parallel/ranked/test_toy_cases.py::test_case_16_frozen_and_integer_parameters_keep_the_values_of_the_root",
    ),
    17: (
        "parallel/ranked/test_resume_cases.py::test_case_17_folder_of_the_root_alone_is_continued_on_both_ranks",
        "parallel/ranked/test_resume_cases.py::test_case_17_folder_of_another_rank_alone_is_not_seen_and_both_start_fresh",
    ),
    18: ("parallel/ranked/test_resume_cases.py::test_case_18_first_step_of_adam_moves_by_the_rate",),
    19: (
        "parallel/ranked/test_resume_cases.py::test_case_19_accumulated_adamw_loaded_by_the_root_alone_agrees_at_each_step",
    ),
    20: ("parallel/test_cases_resume.py::test_case_20_new_process_begins_with_the_slots_and_the_count_of_the_old_one",),
    21: (
        "parallel/ranked/test_resume_cases.py::test_case_21_weights_that_the_root_loads_are_on_all_ranks_without_a_phantom_step",
    ),
    22: (
        "parallel/ranked/test_resume_cases.py::test_case_22_linear_scaling_is_applied_once_however_often_a_run_is_continued",
    ),
    23: (
        "parallel/ranked/test_toy_cases.py::test_case_23_accuracy_counts_every_sample_once",
        "parallel/ranked/test_toy_cases.py::test_case_23_one_sample_gives_its_value",
    ),
    24: ("parallel/ranked/test_toy_cases.py::test_case_24_each_id_once_per_epoch_in_an_order_of_the_seed",),
    25: (
        "parallel/ranked/test_exactness.py::test_case_25_stream_gives_each_id_once_for_any_number_of_workers",
        "parallel/ranked/test_exactness.py::test_case_25_each_epoch_reads_the_whole_stream",
        "parallel/ranked/test_exactness.py::test_case_25_steps_per_epoch_cut_a_stream_without_losing_a_sample",
        "parallel/ranked/test_exactness_tensorflow.py::test_case_25_pipeline_without_end_is_refused",
        "parallel/ranked/test_exactness_tensorflow.py::test_case_25_pipeline_without_end_trains_the_steps_of_an_epoch",
        "parallel/ranked/test_exactness_tensorflow.py::test_case_25_sharded_pipeline_gives_each_id_once",
        "parallel/ranked/test_exactness_tensorflow.py::test_case_25_bare_pipeline_is_refused_with_the_cure",
    ),
    26: ("parallel/ranked/test_exactness.py::test_case_26_linear_decay_is_half_after_five_updates_and_zero_after_ten",),
    27: (
        "parallel/ranked/test_exactness.py::test_case_27_plateau_keeps_the_rate_while_the_global_value_improves",
        "parallel/ranked/test_exactness.py::test_case_27_plateau_lowers_the_rate_when_the_global_value_gets_worse",
        "parallel/ranked/test_exactness.py::test_case_27_early_stopping_follows_the_global_value",
    ),
    28: ("parallel/ranked/test_toy_cases.py::test_case_28_short_window_is_an_update_of_its_own",),
    29: ("parallel/ranked/test_toy_cases.py::test_case_29_accumulated_gradient_is_the_mean_over_passes_and_ranks",),
    30: ("parallel/ranked/test_toy_cases.py::test_case_30_three_updates_are_counted_from_nine_passes",),
    31: (
        "parallel/ranked/test_resume_cases.py::test_case_31_step_that_one_rank_spoils_is_skipped_as_if_its_batch_were_absent",
        "parallel/ranked/test_resume_cases.py::test_case_31_step_that_one_rank_spoils_ends_all_naming_rank_and_step",
        "parallel/test_cases_failures.py::test_case_31_spoilt_step_ends_the_launch_with_its_code_and_one_message",
    ),
    32: (
        "parallel/ranked/test_resume_cases.py::test_case_32_accumulated_steps_after_an_infinite_micro_batch_are_finite",
    ),
    33: ("parallel/test_cases_failures.py::test_case_33_rank_that_raises_ends_the_one_that_sleeps_in_user_code",),
    34: (
        "parallel/test_cases_failures.py::test_case_34_worker_that_leaves_ends_the_launch_and_never_with_zero",
        "parallel/test_launch_failures.py::test_failing_rank_ends_the_launch_with_its_code_and_its_words_are_the_last",
    ),
    35: ("parallel/test_cases_failures.py::test_case_35_rank_without_memory_is_named_last",),
    36: (
        "parallel/test_cases_failures.py::test_case_36_rank_that_never_returns_from_a_callback_is_named_with_its_line",
        "parallel/test_cases_failures.py::test_case_36_evaluation_of_three_times_the_limit_that_advances_is_no_stall",
    ),
    37: (
        "parallel/ranked/test_resume_cases.py::test_case_37_runs_in_a_row_with_loader_workers_leave_none",
        "parallel/ranked/test_toy_models.py::test_case_37_fit_twice_with_one_trainer_starts_anew_on_the_same_model",
        "parallel/test_cases_failures.py::test_case_37_every_run_with_loader_workers_ends_with_zero",
    ),
    38: (
        "parallel/ranked/test_resume_cases.py::test_case_38_newest_file_cut_to_half_is_passed_over_with_one_warning",
        "parallel/ranked/test_resume_cases.py::test_case_38_no_valid_checkpoint_is_an_error_and_never_a_fresh_start",
        "parallel/test_cases_failures.py::test_case_38_root_killed_in_a_save_goes_on_from_the_one_before",
    ),
    39: ("parallel/ranked/test_resume_cases.py::test_case_39_run_stopped_within_an_epoch_uses_each_id_of_it_once",),
    40: (
        "parallel/test_cases_failures.py::test_case_40_stop_signal_saves_and_all_leave_together",
        "parallel/test_cases_failures.py::test_case_40_plain_mpirun_that_is_stopped_leaves_its_last_checkpoint",
    ),
    41: ("parallel/test_cases_resume.py::test_case_41_saved_model_loads_where_horovod_cannot_be_imported",),
    42: ("parallel/ranked/test_toy_models.py::test_case_42_bool_buffer_becomes_that_of_the_root",),
    43: (
        "parallel/ranked/test_exactness_tensorflow.py::test_case_43_equal_tables_look_up_on_all_ranks",
        "parallel/ranked/test_exactness_tensorflow.py::test_case_43_tables_that_differ_between_ranks_are_refused_by_layer",
        "parallel/ranked/test_exactness_tensorflow.py::test_case_43_equal_normalisation_trains_on_all_ranks",
        "parallel/ranked/test_exactness_tensorflow.py::test_case_43_normalisation_that_differs_between_ranks_is_that_of_the_root_or_refused_by_layer",
    ),
    44: ("parallel/ranked/test_exactness.py::test_case_44_rows_that_single_ranks_touched_move_on_all",),
    45: (
        "parallel/ranked/test_toy_models.py::test_case_45_model_called_twice_adds_both_gradients",
        "parallel/ranked/test_toy_models.py::test_case_45_two_losses_summed_add_both_gradients",
        "parallel/ranked/test_toy_models.py::test_case_45_tied_weights_add_both_gradients",
    ),
    46: (
        "parallel/ranked/test_exactness_torch.py::test_case_46_each_group_keeps_its_rate_and_decay",
        "parallel/ranked/test_exactness_torch.py::test_case_46_schedule_scales_the_rates_of_all_groups",
        "parallel/ranked/test_exactness_torch.py::test_case_46_groups_are_saved_with_the_slots_of_both",
        "parallel/ranked/test_exactness_torch.py::test_case_46_groups_go_on_from_a_checkpoint",
    ),
    47: (
        "parallel/ranked/test_exactness_torch.py::test_case_47_closure_and_zero_grad_of_user_code_reduce_over_ranks",
        "parallel/ranked/test_exactness_torch.py::test_case_47_zero_grad_in_a_callback_changes_nothing",
        "parallel/ranked/test_exactness_torch.py::test_case_47_optimizer_of_the_user_with_a_closure_trains",
    ),
    48: (
        "parallel/test_cases.py::test_case_48_import_loads_no_framework_and_no_mpi",
        "parallel/test_cases.py::test_case_48_help_needs_no_framework_and_no_mpi",
    ),
    49: ("parallel/test_bad_input.py::test_framework_that_cannot_be_imported_is_refused_with_the_remedy",),
    50: (
        "parallel/test_launchers.py::test_plain_run_differs_in_size_only_and_needs_one_framework",
        "parallel/test_launchers.py::test_one_rank_under_mpirun_equals_the_plain_run",
        "parallel/test_launchers.py::test_own_script_run_by_python_equals_the_plain_run",
        "parallel/test_launchers.py::test_ranks_that_each_see_size_one_are_refused",
    ),
    51: (
        "parallel/test_cases_resume.py::test_case_51_checkpoint_holds_safetensors_and_json_and_no_pickle",
        "parallel/test_cases_resume.py::test_case_41_saved_model_loads_where_horovod_cannot_be_imported",
    ),
    52: (
        "parallel/test_cases_launch.py::test_case_52_wrong_hosts_are_one_line_with_an_example",
        "parallel/test_cases_launch.py::test_case_52_blank_lines_and_comments_of_a_hostfile_are_ignored",
        "parallel/test_cases_launch.py::test_case_52_a_host_that_does_not_answer_is_named_within_the_time_limit_of_ssh",
    ),
    53: (
        "parallel/test_cases.py::test_case_53_versions_that_differ_between_ranks_are_refused",
        "parallel/test_cases_launch.py::test_case_53_launched_by_full_path_all_ranks_use_that_interpreter",
        "parallel/test_launchers.py::test_hvdtrain_launch_gives_the_summary_of_mpirun",
    ),
    54: (
        "parallel/test_cases.py::test_case_54_timeline_that_cannot_be_written_is_refused_before_training",
        "parallel/test_cases.py::test_case_12_clipping_keeps_one_reduction_per_parameter_and_step",
    ),
    55: (
        "parallel/ranked/test_evaluation_modes.py::test_case_55_omp_num_threads_decides",
        "parallel/ranked/test_toy_models.py::test_case_55_ranks_share_the_cores",
    ),
    56: (
        "parallel/ranked/test_toy_models.py::test_case_56_twenty_run_folders_hold_one_file_of_each_kind",
        "parallel/test_cases.py::test_case_56_two_ranks_print_and_write_each_line_once",
    ),
    57: (
        "parallel/test_cases.py::test_case_57_one_process_per_host_prepares_and_the_others_wait",
        "parallel/test_cases.py::test_case_57_failed_preparation_ends_all_ranks_with_its_traceback_once",
    ),
    58: (
        "parallel/ranked/test_toy_models.py::test_case_58_two_thousand_steps_need_no_more_memory_than_two_hundred",
        "parallel/ranked/test_exactness_tensorflow.py::test_case_58_each_function_is_traced_once_ragged_last_batch_included",
        "parallel/ranked/test_exactness_tensorflow.py::test_case_58_batches_of_two_sizes_would_be_traced_twice",
    ),
    59: (
        "parallel/ranked/test_exactness_torch.py::test_case_59_sync_batch_norm_is_refused_by_name",
        "parallel/ranked/test_exactness_torch.py::test_case_59_batch_norm_on_two_samples_and_one_averages_the_statistics_of_ranks",
        "parallel/ranked/test_exactness_torch.py::test_case_59_sync_batch_norm_of_horovod_is_refused_by_name",
    ),
    60: ("parallel/ranked/test_toy_models.py::test_case_60_doubled_parameter_is_refused_on_all_ranks",),
}
