"""old module -> new module, by room."""
R={}
def put(room, prefix, names):
    for n in names.split():
        old,_,new=n.partition(">")
        key=f"{prefix}.{old}" if prefix else old
        assert key not in R, key
        R[key]=f"engram.{room}.{new or old.rsplit('.',1)[-1]}" if room else f"engram.{new or old}"
# top
put("","engram","__main__ lazy text tree>_")if 0 else None
put("core","engram","arrays tree types derivatives checks process>process_modes")
put("core","engram.core","slots method contract rounds objective settings served personal>personal_parameters shapes>method_shapes classes>class_statistics optimizers>slot_optimizers walkers>clip_and_noise")
put("core","federation","streams")
put("core","engram","units>standardization")
put("guards","engram","privacy>gaussian robust shares>weight_limit")
put("guards","engram.core","adaptive_clip claims>claimed_ranges compression examples>row_privacy broadcast>delta_broadcast")
put("guards","federation","aggregation leaving>local_noise noise calibration amplification guarantee compression>update_codec clock")
put("guards","client.training","sending>outgoing_updates fewer_bytes>compressed_updates samples>poisson_samples")
put("guards","server","accountant spent>client_epsilon noised>noised_scores")
put("guards","strategies","bounding>update_bounds traffic>compressed_messages")
put("guards.secure","federation.secure","client masks noise quantize server session shamir vectors wire")
put("guards.secure","client","parties>secure_parties masking sums>secure_sums")
put("guards.secure","server","secure>drop_outs")
put("networks","engram","vision networks>registry steps>optimizers")
put("networks","engram.models","agreement base built_in constants>module_constants fit>loss_fit functional grouped losses module plain>export_modules recurrent skeleton>traced_module units>layer_units zoo>catalogue")
put("cohort","engram","dense>dense_gradients span>span_coordinates layout>channels_last features>learned_features stacks>stacked_models")
put("cohort","engram.cohort","at_once>vmapped dense draws in_spans>spans in_turn>sequential padding>ragged_batches problem>network_adapter round")
put("cohort.trainer","client.training","arena>shared_tensors helper>worker_process lending>lent_memories workers process>worker_pool ways>ways chunks trial>loss_trial budget>block_size stack>stacked_runs sampler trainer recollection>client_memory diagnosis")
put("scoring","engram","metrics tasks mixtures voting>neighbor_votes conformal")
put("scoring","client.training","scoring>score_clients served measures>score_metrics rows>query_rows")
put("scoring","federation","columns>score_columns")
put("scoring","strategies","selection>best_round scorekeeping score_replies score_warnings evaluation")
put("data","engram","augmentations text>tokenizers")
put("data","federation.data","arrays cells csv_text datasets dealing>load_federation digests encoding federated few_shot hugging_face images in_memory labels lazy loading map_style new_rows newcomer npy npz owners>count_clients partitions places>row_places plain ranges row_hashes shaping>image_axes shortage>too_few_rows source standards>standardize texts unpacked>parquet_cache")
put("data.tables","federation.data","describing>column_summaries frames raw_tables table_rows tables values>text_categories")
put("data.tables","federation","described>table_summary")
put("data.schema","federation.data","declared")
put("data.schema","federation.data.schema","roles table_files")
put("data.schema","federation.data.schema","cells csv_files fitting rules typed written")
put("data.schema","federation","schema>columns")
put("data","federation","shapes stored>file_models names>client_names")
put("settings","federation","experiment errors plugins registry fingerprint learning>method_for_data files safe_path interrupts logs")
put("settings","federation.settings","attacks compression data evaluation fields files>settings_files given machine model protection run shared text time training")
put("settings","federation.methods","base network turns>turn_metrics")
put("wire","federation","wire bundle checksums tensors trained>training_result mapped>mapped_arrays roster counters saved>torch_file")
put("home","federation","exported onnx graphs>onnx_sandbox model_json predicted>prediction_intervals")
put("home","client","packages card confidence remembered>node_export evidence>model_evidence serving")
put("home","simulations.exports","evidence exporting newcomers predicting tables")
put("home","simulations","learned>run_models")
put("runs","server","record run_folder checkpoints contents>folder_records progress folders")
put("runs","simulations","results entries>run_list replay>replayed_participation")
# wings
put("tables","engram.molar","adaptive adaptive_models baselines columns>dependent_columns exchange families heterogeneity high_dim honest>borrowing_intervals intercept intervals lasso median mixed model numbers>base_regressor pooled private random_effects regressor shrinkage simulation site summary tables trimmed_mean two_classes>classifier")
put("tables.bandits","engram.molar.bandits","environments play policies private site trace_norm")
put("tables.federation","federation","estimates>molar_messages")
put("tables.federation","federation.methods","molar molar_bandit")
put("tables.federation","client.hosts","molar>host molar_bandit>bandit_host")
put("tables.federation","client","coefficients")
put("tables.federation","strategies","molar>strategy molar_bandit>bandit_strategy")
put("tables.federation","simulations.reports","molar>report molar_bandit>bandit_report")
put("tables.studies","simulations.studies.molar","bandit bandit_trials choice coefficients comparison contenders heterogeneity methods preparation references regression regression_trials scores settings table")
put("bandits","engram.bandits","club cofiba graph linucb locb logged meta_ban meta_gradients meta_learner molar networks neural persistent>versioned_tensor play policy recovery>group_recovery replay ridge sclub simple>baselines site stacks training user_stats")
put("bandits.environments","engram.bandits.environments","classes environment grouped ratings")
put("bandits.federation","federation","predictions>meta_ban_messages")
put("bandits.federation","federation.methods","meta_ban")
put("bandits.federation","client.hosts","meta_ban>host")
put("bandits.federation","strategies","meta_ban>strategy gradients>batch_gradient")
put("bandits.federation","federation.data","bandits environments arrivals>bandit_turns")
put("bandits.federation","simulations.reports","meta_ban>report")
put("bandits.studies","simulations.studies.meta_ban","environments methods offline regrets settings study trials")
put("online","engram.online","bases>base_learners by_name>row_reader compiled descent domains epochs>doubling_trick estimators experts games hindsight>comparator learner linear loss_streams losses metagrad mixture model newton play rows>compiled_updates server_step steps surrogates tasks universal usc weights")
put("online","engram","states>state_arrays")
put("online.studies","simulations.studies.online","courses>streams matches>curvature_games server_steps settings stream universal")
put("meta","engram.meta","bspiderboost curvature fine_tune meta_gradient moml nasa protonet single_node")
put("meta.studies","simulations.studies.meta_learning","episodes federated jobs methods one_shot one_shot_tasks problem published report settings sinewave sinewave_tasks sweep")
put("attack","engram.attacks","alie backdoor false_rows false_scores false_statistics ipm label_flip scaled sign_flip")
put("attack","engram.disclosure","inversion membership")
put("attack.audit","simulations.auditing","front members messages report")
put("attack","simulations","attacks")
put("studies","simulations.studies","command figures settings study summaries verdict>best_method")
put("sites","client","policy admission approvals terms audit ledger chain>hash_chain head>ledger_head spending>privacy_account leaving>leave_federation sealed>encrypted_file status described accepted")
put("sites","federation","agreement statistics compared>compared_columns")
put("sites","server","survey>schema_survey visits>evaluate_at_sites seats>client_claims")
put("sites","simulations","surveys>site_questions withdrawal doctor")
put("link","federation","addresses announcement credentials keys launch hosting>node_config inbox console proxies pause>backoff flower")
put("core","federation","machine memory_budget")
put("link.server","server","certificates identity invitations renewal registration registry launch superlink superexec http_fleet control callers>control_access suspensions live>live_certificates membership")
put("link.node","client","fleet session worker node handshake>tls_check way>superlink_address fab signing greeting>superlink_probe together>many_nodes shared>fork_preload")
put("client.hosts","client.hosts","base local rows")
put("client","client","app memory disk requests replies>reply_cache rounds>round_log scored>served_slots trainings>training_folders noted>training_description remote>ray_worker asides>node_queries visiting>score_given_model")
put("server","server","app run opened>app_start opening>run_start grid roster answers>roster_query asked>pending_messages costs>exchange_costs dated>clock_header replies status stopping")
put("strategies","strategies","base local>network_strategy rounds sampling>secret_cohorts outgoing>message_content reading>reply_border train_replies screening waves>async_rounds sites>site_strategy")
put("simulations","simulations","engine direct>in_process grid apps pool>job_pool crew>ray_actors cluster>ray_rounds joining>ray_connect loopback deployed app_folder drawing>figure_files")
put("compare","simulations","claims critical>critical_values differences planning>power harm>share_worse gains>gain_plot ranks compared>comparison_api comparing>comparison_run comparison>comparison_folder published>paper_tables rows>report_rows references linear several>settings_for_methods multiples>panel_plots plots colors")
put("compare.reports","simulations.reports","base local sites")
put("compare.suite","simulations.suite","benchmark federations ranks")
put("tune","simulations.tuning","folder front proposals record results runs search space command")
put("studio","simulations.board","app clients comparing connections>http_limits holdings>data_page listing live nodes one_client one_run pieces>widgets serving shelf>run_index trials>search_page")
put("studio.pages","simulations.pages","content figures page repeat>reproduce_command")
put("studio.tracking","simulations.tracking","base mlflow sending tensorboard wandb")
put("cli","simulations","__main__ cli audit_cli benchmark_cli board_cli deployed_cli methods_cli models_cli new_cli report_cli run_cli runs_cli schema_cli show_cli status_cli track_cli tune_cli withdraw_cli options arguments terminal>progress console extras>optional_packages proposing given>python_arguments")
put("cli","client","cli>node_cli site_cli ledger_cli")
put("cli","server","cli>superlink_cli")
put("","simulations","front>api testing>contract_check")
put("client","client","covered>private_replies rows>row_limits")
put("strategies","strategies","clock")
del R["federation.settings.given"]
# packages: None where only its modules move; a name ending in .py becomes a module
PACKAGES={
 "engram":"engram","engram.methods":"engram.methods","engram.core":"engram.core","engram.cohort":"engram.cohort",
 "engram.models":"engram.networks.build.py","engram.molar":"engram.tables","engram.molar.bandits":"engram.tables.bandits",
 "engram.bandits":"engram.bandits","engram.bandits.environments":"engram.bandits.environments","engram.online":"engram.online",
 "engram.meta":"engram.meta","engram.attacks":"engram.attack","engram.disclosure":None,
 "federation":None,"federation.data":"engram.data","federation.data.schema":"engram.data.schema","federation.methods":"engram.settings.families.py",
 "federation.secure":"engram.guards.secure","federation.settings":"engram.settings",
 "client":"engram.client","client.hosts":"engram.client.hosts","client.training":"engram.cohort.trainer",
 "server":"engram.server","strategies":"engram.strategies","simulations":"engram.simulations",
 "simulations.auditing":"engram.attack.audit","simulations.board":"engram.studio","simulations.exports":"engram.home","simulations.pages":"engram.studio.pages",
 "simulations.reports":"engram.compare.reports","simulations.studies":"engram.studies","simulations.studies.meta_ban":"engram.bandits.studies","simulations.studies.meta_learning":"engram.meta.studies","simulations.studies.molar":"engram.tables.studies","simulations.studies.online":"engram.online.studies",
 "simulations.suite":"engram.compare.suite","simulations.tracking":"engram.studio.tracking","simulations.tuning":"engram.tune",
}

# Files that are no modules.
DATA={
 "federation/settings/given.pyi":"engram/settings/given.pyi",
 "simulations/suite/federations.toml":"engram/compare/suite/federations.toml",
}
# The docstrings of packages that are new.
ROOMS={
 "engram.bandits.federation":"Meta-Ban between sites: settings, messages, hosts, strategy, report.",
 "engram.cli":"The `engram` command, one file per group of subcommands.",
 "engram.compare":"Methods side by side: plans, references, statistics, tables and plots.",
 "engram.data.tables":"Tables of a federation: frames, CSV rows, text categories, summaries of columns.",
 "engram.guards":"Protections of an update: clipping, noise, accounting, robust merging, compression.",
 "engram.networks":"Networks, and users' modules, as pure functions: kinds, losses, optimizers by name.",
 "engram.link":"Real clients over gRPC: addresses, credentials, keys, and Flower's transport.",
 "engram.link.node":"A node of a deployed federation: its session, handshake, worker and signatures.",
 "engram.link.server":"The SuperLink's side: certificates, registration, membership, control.",
 "engram.runs":"A run's folder: its record, checkpoints, results and replay.",
 "engram.scoring":"Scores of clients' models: tasks, metrics, what serves a client, the best round.",
 "engram.sites":"Operation of a site: policy, approval, audit log, privacy ledger, doctor.",
 "engram.tables.federation":"MOLAR between sites: settings, messages, hosts, strategies, reports.",
 "engram.wire":"Messages as records: parts, checksums, tensors and the roster.",
}
